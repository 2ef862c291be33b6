"""Tokenizers: any text trains one or is refused, and neither hostile text nor damaged files break
it.
"""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from configs import base
from tests.hostile.inputs import contents, damaged, examples, texts, values
from tests.hostile.outcomes import Refusal, outcome
from transformer.data.tokenizers import tokenizer, vocabulary
from transformer.data.tokenizers.vocabulary import SentencePieceVocabulary, Vocabulary
from transformer.support.special_tokens import PAD, UNK

KINDS = ("bpe", "unigram", "word", "char")
SENTENCES = [
    (f"the cat sat on mat {n}".encode(), f"die Katze saß auf Matte {n * 7}".encode())
    for n in range(40)
]


class Pairs(list):
    """A source of pairs in memory."""

    name, identity = "pairs", {}

    def where(self, index: int, side: int) -> str:
        return f"pair {index}"


def options(kind: str, vocab_size: int, **changes):
    config = base.get_config().tokenizer
    config.update({"kind": kind, "vocab_size": vocab_size} | changes)
    return config


def check_use(
    vocabulary: SentencePieceVocabulary, given: list[str], seeds: list[int], rate: float
) -> None:
    """Checks that the tokens of every segmentation are in range and have a text."""
    encoded = vocabulary.encode(given)
    sampled = vocabulary.sample(encoded, seeds, rate)
    for tokens in (*encoded, *sampled):
        assert all(token == UNK or 4 <= token < vocabulary.size for token in tokens)
    assert [not tokens for tokens in encoded] == [not tokens for tokens in sampled]
    assert all(isinstance(text, str) for text in vocabulary.decode([*encoded, *sampled]))
    assert len(vocabulary.pieces) == vocabulary.size


@pytest.fixture(scope="module")
def trained() -> dict[str, Vocabulary]:
    """A vocabulary of each kind, one with byte fallback, and one of integers."""
    made = {kind: tokenizer.train(options(kind, 50), Pairs(SENTENCES))[0] for kind in KINDS}
    made["bytes"] = tokenizer.train(options("bpe", 310, byte_fallback=True), Pairs(SENTENCES))[0]
    return made | {"ids": vocabulary.IdsVocabulary(20)}


rows = st.lists(st.tuples(contents, contents), max_size=5)


@examples(0.3)
@given(
    rows,
    st.sampled_from(KINDS),
    st.sampled_from((5, 9, 30, 270)),
    st.booleans(),
    st.sampled_from(("nmt_nfkc", "identity")),
)
@example([(b"", b"")], "bpe", 9, True, "nmt_nfkc")
@example([(b"\xff", b"\0")], "unigram", 9, False, "identity")
def test_any_text_trains_or_is_refused(pairs, kind, vocab_size, shared, normalization):
    config = options(
        kind,
        vocab_size,
        shared=shared,
        normalization=normalization,
        byte_fallback=vocab_size > 260 and kind in KINDS[:2],
    )
    vocabularies = outcome(tokenizer.train, config, Pairs(pairs))
    if isinstance(vocabularies, Refusal):
        message = vocabularies.message
        assert ("tokenizer." in message or "not UTF-8" in message) and "INTERNAL" not in message
        return
    for side in (0, 1):
        given = [pair[side].decode(errors="replace") for pair in pairs]
        check_use(vocabularies[side], given, list(range(len(given))), 0.2)
        assert vocabulary.load(vocabularies[side].serialized, "file").encode(given) == vocabularies[
            side
        ].encode(given)


@given(st.lists(texts, max_size=3), st.integers(0, 2**32 - 1), st.sampled_from((*KINDS, "bytes")))
@example(["\0", "\u2581", "<s> <0x0A>"], 0, "bytes")
def test_any_text_is_encoded_with_tokens_of_the_vocabulary(trained, given, seed, kind):
    if kind in ("word", "char"):
        assert all(
            token < trained[kind].size for tokens in trained[kind].encode(given) for token in tokens
        )
    else:
        check_use(trained[kind], given, [seed] * len(given), 0.3)


@given(st.sampled_from((*KINDS, "bytes", "ids")), st.data())
def test_any_tokens_have_a_text(trained, kind, data):
    tokens = data.draw(st.lists(st.integers(PAD, trained[kind].size - 1), max_size=12))
    (text,) = trained[kind].decode([tokens])
    text.encode()


@given(texts)
@example("9" * 5000)
@example("\xb2 \u0663")
def test_integers_are_encoded_or_refused(trained, text):
    encoded = outcome(trained["ids"].encode, [text])
    if not isinstance(encoded, Refusal):
        assert [len(tokens) for tokens in encoded] == [len(text.split())]
        assert all(token == UNK or 4 <= token < 20 for token in encoded[0])


@given(st.sampled_from((*KINDS, "bytes", "ids")), st.lists(texts, max_size=2), st.data())
def test_a_damaged_model_is_refused_or_works(trained, kind, given, data):
    content = data.draw(damaged(trained[kind].serialized) | contents)
    loaded = outcome(vocabulary.load, content, "the file")
    if isinstance(loaded, Refusal):
        assert loaded.message.startswith("the file: ")
        return
    encoded = outcome(loaded.encode, given)
    if not isinstance(encoded, Refusal):
        assert all(0 <= token < loaded.size for tokens in encoded for token in tokens)
        assert all(
            isinstance(text, str)
            for text in loaded.decode([*encoded, range(min(loaded.size, 400))])
        )


@given(st.dictionaries(st.sampled_from(("kind", "size")), values | st.integers(0, 30)) | values)
@example({"kind": "ids", "size": "20"})
@example({"kind": "ids", "size": -1})
@example({"kind": "ids", "size": True})
def test_an_invalid_number_of_integers_is_refused(record):
    loaded = outcome(vocabulary.load, json.dumps(record).encode(), "the file")
    if not isinstance(loaded, Refusal):
        assert loaded.size == record["size"] >= 4 and len(loaded.encode(["7 8"])[0]) == 2
