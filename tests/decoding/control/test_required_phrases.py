"""Searches with required phrases against exhaustive search, and in a small beam."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.control.decoders import make_decoder
from tests.decoding.control.test_constraints import (
    LIMIT,
    LOG_P,
    MODEL,
    SCORES,
    SOURCE,
    SPACE,
    VOCAB_SIZE,
    has,
)
from tests.decoding.control.test_phrases import MODEL as SPELLED_MODEL
from tests.decoding.control.test_phrases import TEXTS as SPELLED_TEXTS
from tests.decoding.control.test_phrases import make_decoder as phrases_decoder
from tests.decoding.control.test_phrases import make_vocabulary
from tests.decoding.models import log_probabilities, make_decoding_config, random_sources
from tests.decoding.test_text_decoder import random_texts, translate
from transformer.decoding import ensemble
from transformer.decoding.beam_search import BeamSearch, SourceBatch
from transformer.decoding.control.constraints import constrain
from transformer.decoding.control.control import Control, OutputControl
from transformer.decoding.control.phrase_progress import measure_progress
from transformer.decoding.control.required_phrases import rank_in_groups, search_with_phrases
from transformer.decoding.translation import EMPTY
from transformer.support.errors import UserError
from transformer.support.special_tokens import EOS, PAD, UNK

WHOLE_WORDS = jnp.zeros((VOCAB_SIZE, 2), bool)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def search(allocates, beam_size, limit, parameters, source, phrases):
    models = ensemble.build_models([MODEL.graph], parameters)
    limits = jnp.full(len(source), limit)
    constraints = {"required": phrases, "spelling": {"edges": WHOLE_WORDS}}
    sentences = SourceBatch(
        source, limits, limit + 1, adjust=functools.partial(constrain, constraints, limits)
    )
    decoding_config = make_decoding_config(forbid_unk=False, beam_size=beam_size)
    if allocates:
        return search_with_phrases(
            phrases, WHOLE_WORDS, models, sentences, decoding_config, beam_size
        )[0]
    return BeamSearch(models, sentences, decoding_config, beam_size).run()[0]


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("phrases", "obeys"),
    [
        ([[[4, 5]]], lambda body: has(body, [4, 5])),
        ([[[UNK, UNK, 5]], [[4, PAD, PAD]]], lambda body: has(body, [UNK, UNK, 5]) and 4 in body),
        (
            [[[4, 4], [UNK, PAD]], [[5, PAD], [PAD, PAD]]],
            lambda body: (has(body, [4, 4]) or UNK in body) and 5 in body,
        ),
    ],
)
def test_the_search_finds_the_best_of_all_outputs_that_have_the_phrases(phrases, obeys):
    best = sorted((i for i, body in enumerate(SPACE) if obeys(body)), key=lambda i: -SCORES[i])
    hypotheses = search(True, len(SPACE), LIMIT, [MODEL.parameters], SOURCE, jnp.array([phrases]))
    count = np.isfinite(hypotheses.scores[0]).sum()
    tokens = [row[row != PAD].tolist() for row in np.array(hypotheses.tokens[0, :count])]
    assert tokens == [[*SPACE[i], EOS] for i in best]
    np.testing.assert_allclose(hypotheses.scores[0, :count], SCORES[best], rtol=1e-5)
    np.testing.assert_allclose(
        hypotheses.token_log_probabilities[0, :count].sum(axis=1), LOG_P[best], rtol=1e-5
    )


@pytest.mark.slow
def test_allocation_finds_better_outputs_than_phrases_forced_at_the_limit():
    sources = random_sources(16, 6, 6, seed=5)
    phrases = jnp.array([[[[5, 4, 5]], [[4, 4, PAD]]]] * 16)
    banks, forced = (search(a, 4, 10, [MODEL.parameters], sources, phrases) for a in (True, False))
    for hypotheses in (banks, forced):
        assert all(
            has(body, [5, 4, 5]) and has(body, [4, 4])
            for body in np.array(hypotheses.tokens[:, 0]).tolist()
        )
    assert banks.scores[:, 0].mean() > forced.scores[:, 0].mean() + 0.1


def spans(text: str, seed: int) -> list[list[str]]:
    """Returns required phrases that the text has: overlapping ones, one twice, and one beside other
    alternatives.
    """
    words = text.split()
    random = np.random.default_rng(seed)
    begin = int(random.integers(len(words)))
    first = " ".join(words[begin : begin + 2])
    second = " ".join(words[begin + 1 : begin + 3]) or first
    return [[first], [second], [first], ["7 7 7", words[-1]]][: int(random.integers(1, 5))]


@pytest.mark.parametrize(
    "beam_size", [1, 4, *(pytest.param(size, marks=pytest.mark.slow) for size in (2, 3, 8, 16, 32))]
)
def test_an_output_of_the_plain_search_that_has_the_phrases_is_never_lost(beam_size):
    decoder = make_decoder(beam_size=beam_size, max_extra_length=8)
    texts = [text for text in random_texts(60, longest=15, seed=3) if text]
    n_best = min(beam_size, 2)
    plain = translate(decoder, texts, n_best)
    required = [spans(outputs[0].text or "1", seed) for seed, outputs in enumerate(plain)]
    forced = translate(
        decoder, texts, n_best, controls=[Control(required=phrases) for phrases in required]
    )
    for outputs, before, phrases in zip(forced, plain, required, strict=True):
        if before[0].text:  # else it cannot have a phrase
            assert outputs[0].score >= before[0].score
        if not any(decoder.control.lacks(output, phrases) for output in before):
            assert outputs == before
        for output in outputs:
            assert not decoder.control.lacks(output, phrases)


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("beam_size", "optimal", "gap"), [(1, 0.6, 0.6), (4, 0.92, 0.05), (8, 0.99, 0.001)]
)
def test_the_gap_to_exhaustive_search(beam_size, optimal, gap):
    """Of 40 sources, a share `optimal` has the best output.

    The mean score is at most `gap` below the best one.
    """
    sources = random_sources(40, 5, VOCAB_SIZE, seed=7)
    random = np.random.default_rng(0)
    phrases = random.choice([UNK, 4, 5], size=(40, 1, 1, 2)).astype(np.int32)
    hypotheses = search(True, beam_size, LIMIT, [MODEL.parameters], sources, jnp.array(phrases))
    divisors = np.array([((5 + len(body) + 1) / 6) ** 0.6 for body in SPACE])
    gaps = []
    for source, phrase, score in zip(sources, phrases, hypotheses.scores[:, 0], strict=True):
        obedient = [i for i, body in enumerate(SPACE) if has(body, phrase[0, 0].tolist())]
        scores = (
            log_probabilities([MODEL], source, [[*SPACE[i], EOS] for i in obedient])
            / divisors[obedient]
        )
        gaps.append(scores.max() - score)
    assert min(gaps) > -1e-4
    assert np.mean(np.array(gaps) < 1e-4) >= optimal
    assert np.mean(gaps) <= gap


def test_needed_after_by_hand():
    phrases = jnp.array([[[4, 5, 4], [6, 7, PAD]], [[8, PAD, PAD], [PAD, PAD, PAD]]])
    # Tokens from 6 on end within a word, which 9 continues.
    edges = jnp.array([[token == 9, token >= 6] for token in range(10)])
    # The first phrase needs two tokens, by its second alternative; 6 or 4 5 begin it.
    for tokens, expected in (
        ([], 3),
        ([6], 2),
        ([4], 3),
        ([4, 5], 2),
        ([4, 5, 4], 1),
        ([8], 2),
        ([6, 7, 8], 0),
        ([6, 6], 2),
        ([6, 7, 9, 8], 2),
        ([6, 7, 4, 8], 0),
        ([8, 9], 3),
        ([8, 9, 8], 2),
        ([4, 5, 4, 9, 8], 0),
    ):
        *before, last = tokens or [PAD]
        padded = jnp.array([[[*before, *[PAD] * (5 - len(before))]]])
        progress = measure_progress(padded, jnp.array(len(before)), phrases[None], edges)
        assert progress.needed_after(jnp.array([[[last]]])) == expected, tokens


def test_a_phrase_does_not_begin_within_a_word():
    """Tokens from 4 on are letters, except the space 9, as in a vocabulary of bytes."""
    phrases = jnp.array([[[[4, 5]]]])
    edges = jnp.array([[token in range(4, 9)] * 2 for token in range(10)])
    for tokens, expected in (
        ([4, 5], 0),
        ([6, 4, 5], 2),
        ([6, 4], 2),
        ([9, 4], 1),
        ([6, 9, 4, 5], 0),
        ([6, 4, 5, 9], 2),
        ([4, 5, 9], 0),
        ([4, 5, 6], 2),
    ):
        *before, last = tokens
        padded = jnp.array([[[*before, *[PAD] * (5 - len(before))]]])
        progress = measure_progress(padded, jnp.array(len(before)), phrases, edges)
        assert progress.needed_after(jnp.array([[[last]]])) == expected, tokens


@pytest.mark.first_case
@pytest.mark.parametrize("strategy", ["beam", "sample"])
def test_outputs_have_their_phrases_whatever_their_neighbours(strategy):
    texts = [text or "1" for text in random_texts(8, longest=15, seed=0)]
    required = [[], [["3 2"]], [["6", "5 5"], ["2"]], [["4 4 3"]]] * 2
    decoder = make_decoder(strategy=strategy, max_extra_length=8)
    controls = [Control("7", phrases) for phrases in required]
    together = translate(decoder, texts, controls=controls)
    for phrases, (best,) in zip(required, together, strict=True):
        body = best.text.split()
        assert body[0] == "7"
        assert all(
            any(has(body, phrase.split()) for phrase in alternatives) for alternatives in phrases
        )
    (alone,) = translate(decoder, texts[2:3], first_line=3, controls=controls[2:3])
    assert alone[0].tokens == together[2][0].tokens


def test_rank_in_groups_by_hand():
    groups = jnp.array([[1, 0, 1, 1, 0]])
    values = jnp.array([[2.0, 1.0, 3.0, 2.0, 5.0]])
    assert rank_in_groups(groups, values).tolist() == [[1, 1, 0, 2, 0]]


def test_a_phrase_ends_at_the_end_of_a_word():
    decoder = phrases_decoder(beam_size=4)
    required = [["a"]] * len(SPELLED_TEXTS)
    controls = [Control(required=[phrase]) for phrase in required]
    outputs = decoder.translate(
        decoder.place([SPELLED_MODEL.parameters]), SPELLED_TEXTS, controls=controls
    )
    for (best,) in outputs:
        assert re.search(r"\ba\b", best.text)


@pytest.mark.slow
def test_an_output_does_not_babble_for_a_phrase_that_the_model_does_not_expect():
    decoder = make_decoder(beam_size=2, max_extra_length=30, max_length_factor=2.0)
    texts = [text for text in random_texts(30, longest=15, seed=4) if text]
    plain = translate(decoder, texts)
    forced = translate(decoder, texts, controls=[Control(required=[["7 6 7 6"]]) for _ in texts])
    for (before,), (after,) in zip(plain, forced, strict=True):
        assert has(after.text.split(), ["7", "6", "7", "6"])
        assert len(after.tokens) <= len(before.tokens) + 4


def test_no_output_with_the_phrases_is_dropped_when_the_search_for_them_finds_fewer(monkeypatch):
    some = dataclasses.replace(EMPTY, tokens=(EOS,))
    outputs = {x: dataclasses.replace(some, text=x, score=-float(i)) for i, x in enumerate("abcd")}
    # without the phrases, and with them
    found = [[outputs["a"], outputs["b"], outputs["c"]], [outputs["d"]]]
    decoder = make_decoder()
    monkeypatch.setattr(decoder.control, "lacks", lambda output, required: output.text == "b")
    monkeypatch.setattr(decoder.control, "with_limit", lambda control, output: control)
    monkeypatch.setattr(decoder, "search_sources", lambda *_: [found.pop(0)])
    known = decoder.translate({}, ["2"], controls=[Control(required=[["1"]])])
    assert [output.text for output in known[0]] == ["a", "c", "d"]


def test_a_sentence_without_phrases_may_have_a_longer_prefix_than_an_empty_source():
    """The search with phrases leaves it out, so the limit there is that of no source."""
    decoder, prefix = make_decoder(max_extra_length=4), "7 7 7 7 7 7"
    controls = [Control(prefix), Control(required=[["3 2"]])]
    together = translate(decoder, ["1 2 3 4 5 6 7", "2 3"], controls=controls)
    assert together[0] == translate(decoder, ["1 2 3 4 5 6 7"], controls=controls[:1])[0]
    assert together[0][0].text.startswith(prefix) and "3 2" in together[1][0].text


def test_a_phrase_of_a_script_without_spaces_may_follow_a_character():
    vocabulary = make_vocabulary("私は東京に 東京 ab ab", size=17)
    control = OutputControl(make_decoding_config(), vocabulary)
    arrays = control.encode([Control(required=[["東京"], ["ab"]])], [[5] * 9], 1)([0])
    spelled = [
        ["".join(vocabulary.pieces[x] for x in row if x) for row in phrase]
        for phrase in arrays["required"][0]
    ]
    assert spelled == [["\u2581東京", "東京"], ["\u2581ab", ""]]


@pytest.mark.parametrize(
    ("required", "message"),
    [
        (
            [["1 1 1 1 1 1"]],
            "^line 1: prefix and required phrases have 6 tokens, an output may have 5; shorten",
        ),
        (
            [["1 1 1", "2 2 2 2"], ["3 3 3"]],
            "^line 1: prefix and required phrases have 6 tokens, an output may have 5",
        ),
        ([[" "]], "^required phrase of line 1: ' ' has no tokens"),
        ([["99"]], "^required phrase of line 1: '99' has characters that the vocabulary lacks"),
    ],
)
def test_phrases_that_no_output_can_have_are_refused(required, message):
    with pytest.raises(UserError, match=message):
        translate(make_decoder(), ["1"], controls=[Control(required=required)])


def test_phrases_of_one_sentence_are_banned_there_and_a_contradiction_is_refused():
    texts = [text for text in random_texts(12, longest=15, seed=0) if text]
    plain = translate(make_decoder(), texts)
    banned = [["1 1", " ", "7"] if i % 2 else [] for i in range(len(texts))]
    constrained = translate(
        make_decoder(), texts, controls=[Control(banned=phrases) for phrases in banned]
    )
    assert constrained[::2] == plain[::2]
    for (before,), (after,) in zip(plain[1::2], constrained[1::2], strict=True):
        assert "1 1" in before.text and "1 1" not in after.text and "7" not in after.text
    with pytest.raises(
        UserError, match="^line 2: '3 1 1' is required, but '1 1' is banned; remove one of them"
    ):
        controls = [Control(required=[["3 1 1"]], banned=phrases) for phrases in banned]
        translate(make_decoder(), texts, controls=controls)
