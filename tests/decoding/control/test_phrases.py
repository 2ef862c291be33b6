"""Banned phrases against exhaustive search, with a vocabulary that spells the same text in several
ways.
"""

import functools
import io
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece

from tests.decoding.models import (
    log_probabilities,
    make_decoding_config,
    random_sources,
    tiny_model,
)
from tests.decoding.test_text_decoder import DEVICES
from transformer.data.tokenizers.byte_vocabulary import ByteVocabulary
from transformer.data.tokenizers.piece_vocabulary import PieceVocabulary
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import IdsVocabulary, SentencePieceVocabulary
from transformer.decoding import ensemble
from transformer.decoding.beam_search import BeamSearch, SourceBatch
from transformer.decoding.control.constraints import History, constrain, forbid_banned_phrases
from transformer.decoding.control.control import Control
from transformer.decoding.control.controlled_decoder import ControlledDecoder
from transformer.decoding.control.phrases import Spelling, find_words, is_boundary
from transformer.support.errors import UserError
from transformer.support.special_tokens import EOS, PAD, SPECIAL

LIMIT = 3


def make_vocabulary(
    text: str = "ab ab a ba. ab.ab aba b", kind: str = "bpe", size: int = 12
) -> SentencePieceVocabulary:
    """Returns a vocabulary.

    That of the defaults has the tokens ab, ▁ab, ▁b, ▁a, a, b, ▁ and the full stop.
    """
    model, special = io.BytesIO(), {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text] * 50),
        model_writer=model,
        model_type=kind,
        vocab_size=size,
        num_threads=1,
        minloglevel=2,
        **special,
    )
    return SentencePieceVocabulary(model.getvalue())


VOCABULARY = make_vocabulary()
SPELLING = Spelling(VOCABULARY)
MODEL = tiny_model(VOCABULARY.size, seed=3)
SOURCE = random_sources(1, 5, VOCABULARY.size, seed=4)
SPACE = [
    list(body)
    for n in range(LIMIT + 1)
    for body in itertools.product(range(SPECIAL, VOCABULARY.size), repeat=n)
]
SCORES = log_probabilities([MODEL], SOURCE[0], [[*body, EOS] for body in SPACE])


@functools.partial(jax.jit, static_argnums=0)
def search(numbers, parameters, source, arrays):
    values = {"spelling": {"table": jnp.array(SPELLING.table)}} | dict(numbers) | arrays
    limits = jnp.array([LIMIT])
    sentences = SourceBatch(
        source, limits, LIMIT + 1, adjust=functools.partial(constrain, values, limits)
    )
    decoding_config = make_decoding_config(length_penalty=0.0, beam_size=len(SPACE))
    return BeamSearch(
        ensemble.build_models([MODEL.graph], parameters), sentences, decoding_config, len(SPACE)
    ).run()[0]


def text_of(tokens: list[int]) -> str:
    return VOCABULARY.decode([tokens])[0]


def is_ended(phrase: str, body: list[int], start: int = 0) -> bool:
    """Tells whether a token after the first `start` ends the phrase, which begins a word."""
    ends = range(start + 1, len(body) + 1)
    pattern = (r"(?<!\w)" if phrase[0].isalnum() else "") + re.escape(phrase)
    return any(re.search(rf"{pattern}\Z", text_of(body[:end])) for end in ends)


PREFIX = VOCABULARY.encode(["ab"])[0]


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("phrases", "prefix", "least"),
    [(["ab"], [], 0), (["b"], [], 0), (["a b", "."], [], 0), (["ab", "b"], PREFIX, 3)],
)
def test_the_search_finds_the_best_of_all_outputs_without_the_phrases_in_any_segmentation(
    phrases, prefix, least
):
    arrays = {"banned": jnp.array([SPELLING.rules("", phrases)])}
    arrays |= (
        {"prefix": jnp.array([[*prefix, *[PAD] * (LIMIT + 1 - len(prefix))]])} if prefix else {}
    )
    hypotheses = search(
        (("min_length", least),) if least else (), [MODEL.parameters], SOURCE, arrays
    )
    count = np.isfinite(hypotheses.scores[0]).sum()
    found = [
        row[(row != PAD) & (row != EOS)].tolist() for row in np.array(hypotheses.tokens[0, :count])
    ]

    def obeys(body: list[int]) -> bool:
        is_free = not any(is_ended(phrase, body, len(prefix)) for phrase in phrases)
        return is_free and body[: len(prefix)] == prefix and len(body) >= least

    best = sorted((i for i, body in enumerate(SPACE) if obeys(body)), key=lambda i: -SCORES[i])
    assert 0 < len(best) < len(SPACE) and found == [SPACE[i] for i in best]
    np.testing.assert_allclose(hypotheses.scores[0, :count], SCORES[best], rtol=1e-5)
    for phrase in phrases:  # as words of their own
        whole = rf"\b{re.escape(phrase)}\b" if phrase[0].isalnum() else re.escape(phrase)
        assert prefix or not any(re.search(whole, text_of(body)) for body in found)
        assert any(re.search(whole, text_of(body)) for body in SPACE)
        spellings = [body for body in SPACE if text_of(body) == phrase]
        assert len(spellings) > 1 and not any(body in found for body in spellings)


def test_a_longer_word_stays_possible_in_a_token_that_goes_past_the_phrase():
    hypotheses = search(
        (), [MODEL.parameters], SOURCE, {"banned": jnp.array([SPELLING.rules("", ["a"])])}
    )
    words = {
        word
        for row in np.array(hypotheses.tokens[0])
        for word in re.findall(r"\w+", text_of(row.tolist()))
    }
    assert "a" not in words and {"ab", "bab", "aba"} <= words


def test_a_token_that_has_the_phrase_between_boundaries_needs_no_text_before_it():
    tokens = ["<pad>", "<unk>", "<s>", "</s>", "(art,", "artist", "art", "日本"]
    spelling = Spelling(PieceVocabulary(tokens, [None, None]))
    assert [
        {tokens[rule[0]] for rule in spelling.rules("", [phrase])} for phrase in ("art", "本", "t")
    ] == [
        {"(art,", "art"},
        {"日本"},
        set(),
    ]
    arrays = {"table": jnp.array(spelling.table)}
    history = History(jnp.full((1, 1, 3), PAD), jnp.array(0), jnp.array([2]), arrays)
    forbidden = forbid_banned_phrases(
        jnp.array([spelling.rules("", ["本"])]), history, jnp.zeros((1, 1, 8), bool)
    )
    assert forbidden[0, 0].tolist() == [token == "日本" for token in tokens]


def make_decoder(**changes) -> ControlledDecoder:
    known = {"beam_size": 4, "max_extra_length": 4, "max_source_length": 20, "batch_tokens": 256}
    decoding_config = make_decoding_config(**known | changes)
    return ControlledDecoder(
        [MODEL.graph], Tokenizer(VOCABULARY, VOCABULARY), decoding_config, DEVICES
    )


TEXTS = ["ab a b", "b b.", "a", "ab.ab ab", "b a b"]


@pytest.mark.first_case
@pytest.mark.parametrize("strategy", ["beam", "sample"])
def test_bans_of_a_file_and_of_a_text_hold_whatever_the_neighbours(strategy, tmp_path):
    (tmp_path / "banned").write_text("a b\n\n日\n.\n")
    here = [["b"], [], ["ab", "a"], [" "], ["a"]]
    decoder = make_decoder(strategy=strategy, banned=str(tmp_path / "banned"))
    parameters = decoder.place([MODEL.parameters])
    together = decoder.translate(
        parameters, TEXTS, controls=[Control(banned=phrases) for phrases in here]
    )
    free = make_decoder(strategy=strategy).translate(parameters, TEXTS)
    ended = 0
    for i, phrases in enumerate(here):
        banned = [phrase for phrase in ("a b", ".", *phrases) if phrase.strip()]
        assert not any(is_ended(phrase, list(together[i][0].tokens[:-1])) for phrase in banned)
        ended += any(is_ended(phrase, list(free[i][0].tokens[:-1])) for phrase in banned)
        one = decoder.translate(
            parameters, [TEXTS[i]], 1, 1 + i, controls=[Control(banned=phrases)]
        )
        assert one[0][0].tokens == together[i][0].tokens
    assert ended > 1, "the phrases are too weak"


@pytest.mark.parametrize(
    ("banned", "required", "message"),
    [
        (
            [],
            "ab b",
            "line 1: 'ab b' is required, but 'b' is in decoding.banned; remove one of them",
        ),
        (["ab"], "ab a", "line 1: 'ab a' is required, but 'ab' is banned; remove one of them"),
        (["ab a"], "aba", None),
    ],
)
def test_a_required_phrase_with_a_banned_one_is_refused(banned, required, message, tmp_path):
    (tmp_path / "banned").write_text("b\n")
    decoder = make_decoder(banned=str(tmp_path / "banned"))
    controls = [Control(banned=banned, required=[[required]])]
    translate = functools.partial(decoder.translate, decoder.place([MODEL.parameters]), ["ab a b"])
    if message is None:
        assert required in translate(controls=controls)[0][0].text
        return
    with pytest.raises(UserError) as caught:
        translate(controls=controls)
    assert str(caught.value) == message


def test_tokens_of_vocabularies_whose_decoding_adds_spaces_are_words():
    words = PieceVocabulary(["<pad>", "<unk>", "<s>", "</s>", "12", "2", "1", "日"], [None, None])
    for vocabulary in (IdsVocabulary(VOCABULARY.size), words):
        spelling = Spelling(vocabulary)
        assert {text[0] for text in spelling.texts[SPECIAL:]} == {" "}
        one, two, both = (vocabulary.encode([text])[0] for text in ("1", "2", "1 2"))
        assert (
            spelling.find_phrase(both, ["2"]) == "2" and spelling.find_phrase(both, ["12"]) is None
        )
        assert spelling.find_phrase(one, ["1"]) == "1" and one + two == both


def test_a_vocabulary_whose_first_token_is_a_space_bans_too():
    for kind in ("char", "unigram"):
        vocabulary = make_vocabulary("a b c d e f g .", kind, size=13)
        assert vocabulary.decode([[SPECIAL]]) == [""]
        spelling = Spelling(vocabulary)
        assert set("ab. ") <= set("".join(spelling.texts)) and spelling.rules("", ["ab"])
        assert spelling.find_phrase(vocabulary.encode(["a ab"])[0], ["ab"]) == "ab"


def test_a_ban_of_a_character_that_is_several_bytes_is_refused():
    spelling = Spelling(ByteVocabulary())
    assert spelling.rules("", ["den"])
    with pytest.raises(UserError, match="^line 3: 'für' cannot be banned, .* only bytes of ü; "):
        spelling.rules("line 3", ["den", "für"])


def test_phrases_that_no_token_ends_and_too_many_required_ones(tmp_path):
    (tmp_path / "banned").write_text("日\n")
    decoder = make_decoder(banned=str(tmp_path / "banned"), max_extra_length=500)
    assert "banned" not in decoder.control.values
    with pytest.raises(
        UserError,
        match="line 1: 128 required phrases of 2 alternatives of 2 tokens are more than 256",
    ):
        controls = [Control(required=[["ab a", "b"], ["a"]] * 60)]
        decoder.translate(decoder.place([MODEL.parameters]), ["a"], controls=controls)


def test_combining_marks_belong_to_their_word():
    """The city's name begins with the word for water."""
    assert find_words("पानीपत जाओ", "पानी") == -1
    assert find_words("ठंडा पानी लाओ", "पानी") == 5
    assert find_words("cafe\u0301s", "cafe") == -1


def test_scripts_without_spaces_begin_words_everywhere():
    for phrase, text, begins in (
        ("本", "日本", True),
        ("x", "日x", True),
        ("x", "ax", False),
        (".", "a.", True),
    ):
        assert is_boundary(text, text.index(phrase)) == begins
