"""Constrained search against the exhaustive search of all outputs that obey the constraint."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.control.decoders import make_decoder
from tests.decoding.models import (
    log_probabilities,
    make_decoding_config,
    random_sources,
    tiny_model,
)
from tests.decoding.test_text_decoder import MODEL as MODEL_OF_TEXTS
from tests.decoding.test_text_decoder import make_decoder as make_plain_decoder
from tests.decoding.test_text_decoder import random_texts, translate
from transformer.data.tokenizers.vocabulary import IdsVocabulary
from transformer.decoding import ensemble
from transformer.decoding.batches import DecodingBatch
from transformer.decoding.beam_search import BeamSearch, SourceBatch, beam_search
from transformer.decoding.control.constraints import constrain
from transformer.decoding.control.control import Control, OutputControl
from transformer.support.errors import UserError
from transformer.support.special_tokens import EOS, PAD, SPECIAL, UNK

VOCAB_SIZE, LIMIT = 6, 4
MODEL = tiny_model(VOCAB_SIZE, seed=3)
SOURCE = random_sources(1, 5, VOCAB_SIZE, seed=4)
SPACE = [
    list(body)
    for length in range(LIMIT + 1)
    for body in itertools.product((UNK, 4, 5), repeat=length)
]
LOG_P = log_probabilities([MODEL], SOURCE[0], [[*body, EOS] for body in SPACE])
SCORES = LOG_P / np.array([((5 + len(body) + 1) / 6) ** 0.6 for body in SPACE])


@functools.partial(jax.jit, static_argnums=(0, 1))
def search(beam_size, numbers, parameters, source, arrays):
    limits = jnp.array([LIMIT])
    adjust = functools.partial(constrain, dict(numbers) | arrays, limits)
    sentences = SourceBatch(source, limits, LIMIT + 1, adjust=adjust)
    decoding_config = make_decoding_config(forbid_unk=False, beam_size=beam_size)
    return BeamSearch(
        ensemble.build_models([MODEL.graph], parameters), sentences, decoding_config, beam_size
    ).run()[0]


def begins(prefix):
    return lambda body: body[: len(prefix)] == prefix


def has(body, phrase):
    return any(body[i : i + len(phrase)] == phrase for i in range(len(body)))


def has_no_repeated(n, body):
    ngrams = [tuple(body[i : i + n]) for i in range(len(body) - n + 1)]
    return len(set(ngrams)) == len(ngrams)


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("values", "obeys"),
    [
        ({"prefix": np.array([[4, 5, *[PAD] * 3]])}, begins([4, 5])),
        ({"min_length": 2}, lambda body: len(body) >= 2),
        ({"min_length": 9}, lambda body: len(body) == LIMIT),
        *[({"no_repeat_ngram": n}, functools.partial(has_no_repeated, n)) for n in (1, 2, 3)],
        ({"prefix": np.array([[5, 5, 5, 5, PAD]])}, begins([5, 5, 5, 5])),
    ],
)
def test_the_search_finds_the_best_of_all_outputs_that_obey(values, obeys):
    best = sorted((i for i, body in enumerate(SPACE) if obeys(body)), key=lambda i: -SCORES[i])
    assert 0 < len(best) < len(SPACE) - 1, "the constraint is too weak"
    numbers = tuple(item for item in values.items() if isinstance(item[1], int))
    arrays = {
        name: jnp.array(value) for name, value in values.items() if not isinstance(value, int)
    }
    hypotheses = search(len(SPACE), numbers, [MODEL.parameters], SOURCE, arrays)
    count = np.isfinite(hypotheses.scores[0]).sum()
    assert [row[row != PAD].tolist() for row in np.array(hypotheses.tokens[0, :count])] == [
        [*SPACE[i], EOS] for i in best
    ]
    np.testing.assert_allclose(hypotheses.scores[0, :count], SCORES[best], rtol=1e-5)
    np.testing.assert_allclose(
        hypotheses.token_log_probabilities[0, :count].sum(axis=1), LOG_P[best], rtol=1e-5
    )


BATCH = DecodingBatch(rows=8, length=16, indices=[0])
TEXTS = random_texts(12, longest=15, seed=0)
BANNED = ["4", "4"], ["7"], ["1", "1", "1"], ["5"], ["6"]
PREFIXES = ["", "1", "2 3 4", "7 7 7 7"] * 3


@pytest.mark.first_case
@pytest.mark.parametrize("strategy", ["beam", "sample"])
def test_a_prefix_holds_whatever_its_neighbours_and_without_one_nothing_changes(strategy):
    decoder = make_decoder(strategy=strategy, max_extra_length=20)
    together = translate(
        decoder, TEXTS, n_best=2, controls=[Control(prefix) for prefix in PREFIXES]
    )
    plain = translate(decoder, TEXTS, n_best=2)
    for line, (text, prefix, translations) in enumerate(
        zip(TEXTS, PREFIXES, together, strict=True), start=1
    ):
        assert all(
            f"{best.text} ".startswith(f"{prefix} ") for best in translations if text and prefix
        )
        if not prefix:
            assert [best.tokens for best in translations] == [
                best.tokens for best in plain[line - 1]
            ]
        if line % 4 == 3:
            alone = translate(
                decoder, [text], n_best=2, first_line=line, controls=[Control(prefix)]
            )
            assert [best.tokens for best in alone[0]] == [best.tokens for best in translations]
    assert together != plain


def test_the_first_pass_may_be_shorter_than_the_prefix():
    prefix = " ".join("6" * 20)
    ((best,),) = translate(make_decoder(max_extra_length=30), ["1 2"], controls=[Control(prefix)])
    assert best.text.startswith(prefix)


@pytest.mark.parametrize(
    ("prefixes", "changes", "message"),
    [
        (["1", "2 99"], {}, "^prefix of line 2: '2 99' has characters that the vocabulary lacks"),
        (
            ["1", "1 1 1 1 1 1"],
            {},
            "^line 2: prefix and required phrases have 6 tokens, an output may have 5; shorten",
        ),
        (["1", "x"], {}, "^prefix of line 2: 'x'"),
        (
            ["1", "2"],
            {"strategy": "ctc"},
            "^prefixes, phrases and glossaries need a search by steps",
        ),
    ],
)
def test_a_prefix_that_no_output_can_have_is_refused(prefixes, changes, message):
    with pytest.raises(UserError, match=message):
        translate(
            make_decoder(**changes), ["1 2", "3"], controls=[Control(prefix) for prefix in prefixes]
        )


@pytest.mark.first_case
@pytest.mark.parametrize("strategy", ["beam", "sample"])
def test_the_keys_hold_in_every_search(strategy, tmp_path):
    (tmp_path / "phrases").write_text("4 4\n\n7\n1 1 1\n")
    banned = {"banned": str(tmp_path / "phrases"), "banned_pieces": ("5", "6")}
    for changes, obeys in (
        ({"min_length": 6}, lambda body: len(body) >= 5),  # the limit of the shortest source
        ({"no_repeat_ngram": 2}, functools.partial(has_no_repeated, 2)),
        (banned, lambda body: not any(has(body, phrase) for phrase in BANNED)),
    ):
        texts = [text for text in random_texts(40, longest=15, seed=0) if text]
        plain, constrained = (
            translate(make_decoder(strategy=strategy, **c), texts) for c in ({}, changes)
        )
        assert all(obeys(best.text.split()) for (best,) in constrained)
        assert not all(obeys(best.text.split()) for (best,) in plain), f"{changes} are too weak"


def test_banned_pieces_are_forbidden_after_any_text_and_keep_the_other_probabilities():
    control = OutputControl(make_decoding_config(banned_pieces=("5", "0")), IdsVocabulary(12))
    tokens = jnp.full((1, 2, 6), PAD).at[0, :, :2].set(jnp.array([[5, 6], [9, 9]]))
    logits = jnp.arange(24.0).reshape(1, 2, 12)
    prediction = ensemble.Prediction(logits, jnp.zeros((1, 2)))
    constrained = constrain(
        control.values_with({}), jnp.array([5]), prediction, tokens, jnp.array(2)
    ).logits
    expected = logits.at[:, :, jnp.array([SPECIAL, SPECIAL + 5])].set(-jnp.inf)
    np.testing.assert_array_equal(constrained, expected)
    with pytest.raises(
        UserError, match="^decoding.banned_pieces: the vocabulary lacks 99; leave it out"
    ):
        OutputControl(make_decoding_config(banned_pieces=("5", "99")), IdsVocabulary(12))


def test_without_constraints_the_program_is_that_of_the_plain_search():
    def program(decoder):
        arrays = decoder.arrays_of([[4, EOS]], first_line=1)(BATCH)
        search = decoder.jit(decoder.search, method=beam_search, n_best=1, extra_length=None)
        return search.lower(decoder.abstract([MODEL_OF_TEXTS.parameters]), *arrays).as_text()

    assert (
        program(make_decoder())
        == program(make_plain_decoder())
        != program(make_decoder(min_length=1))
    )


def test_the_prompt_of_a_language_model_is_not_forbidden():
    """The model of the first row predicts a token of its prompt, which would repeat a token."""
    tokens = jnp.full((2, 1, 6), PAD).at[:, 0, 0].set(5)
    logits = jnp.zeros((2, 1, 8)).at[0].set(-jnp.inf).at[0, 0, 5].set(1.0)
    prediction = ensemble.Prediction(logits, jnp.zeros((2, 1)))
    arguments = jnp.array([5, 5]), prediction, tokens, jnp.array(1)
    constrained = constrain({"no_repeat_ngram": 1, "min_length": 3}, *arguments).logits[:, 0]
    assert jnp.flatnonzero(jnp.isfinite(constrained[0])).tolist() == [5]
    assert jnp.flatnonzero(jnp.isneginf(constrained[1])).tolist() == [EOS, 5]
    other = constrain(
        {"no_repeat_ngram": 1, "prefix": jnp.array([[0, 6], [0, 6]])}, *arguments
    ).logits[:, 0]
    assert jnp.isneginf(other[0]).all()  # a prefix that contradicts the prompt leaves no output


def test_a_file_that_is_missing_is_refused():
    with pytest.raises(
        UserError, match="^decoding.banned=absent: absent: No such file or directory; name a file"
    ):
        make_decoder(banned="absent")
