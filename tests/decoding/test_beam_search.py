"""Beam search against greedy search, exhaustive search and the uncached model."""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.models import (
    FORBIDDEN,
    TOLERANCE,
    greedy,
    log_probabilities,
    make_decoding_config,
    random_sources,
    teacher_forced,
    tiny_model,
)
from transformer.decoding import ensemble
from transformer.decoding.beam_search import (
    LENGTH_PENALTIES,
    STOPPING_RULES,
    BeamSearch,
    SourceBatch,
    output_limits,
)
from transformer.decoding.ensemble import Prediction
from transformer.support.special_tokens import BOS, EOS, PAD, UNK

VOCAB_SIZE = 12
PENALTIES = {
    "gnmt": lambda length, alpha: ((5 + length) / 6) ** alpha,
    "power": lambda length, alpha: length**alpha,
}


def search(models, source, limits, *, n_best, max_length=16, **settings):
    graphs, parameters = zip(*models, strict=True)
    settings, limits = (n_best, max_length, *settings.items()), np.array(limits, np.int32)
    return jax.device_get(_search(graphs, settings, parameters, source, limits))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _search(graphs, settings, parameters, source, limits):
    (n_best, max_length, *changes), models = settings, ensemble.build_models(graphs, parameters)
    sentences = SourceBatch(source, limits, max_length)
    return BeamSearch(models, sentences, make_decoding_config(**dict(changes)), n_best).run()[0]


def output(row: np.ndarray) -> list[int]:
    """Returns the tokens up to EOS. Asserts that there is an EOS and that only PAD follows it."""
    end = row.tolist().index(EOS)
    assert (row[end + 1 :] == PAD).all()
    return row[: end + 1].tolist()


def test_beam_of_one_is_greedy():
    model = tiny_model(VOCAB_SIZE, seed=0)
    sources = random_sources(24, 6, VOCAB_SIZE, seed=1)
    limits = (sources != PAD).sum(axis=1) + 4
    hypotheses = search([model], sources, limits, beam_size=1, n_best=1)
    outputs = [output(row) for row in hypotheses.tokens[:, 0]]
    assert outputs == greedy([model], sources, limits)
    assert len({len(tokens) for tokens in outputs}) > 4, "the model is too simple a case"


SSRU = {"decoder_self_attention": "ssru", "output_bias": True, "decoder_start": "zero"}


# The second of two models is recurrent, and also the only one of the third case.
@pytest.mark.parametrize(
    ("form", "alpha", "changes"),
    [("gnmt", 0.0, [{}]), ("gnmt", 1.5, [{}, SSRU]), ("gnmt", 0.6, [SSRU]), ("power", 1.0, [{}])],
)
def test_beam_as_wide_as_the_space_is_exhaustive_search(form, alpha, changes):
    vocab_size, limit = 6, 3
    models = [tiny_model(vocab_size, seed=seed, **changed) for seed, changed in enumerate(changes)]
    source = random_sources(1, 5, vocab_size, seed=4)
    words = [token for token in range(vocab_size) if token not in (PAD, BOS, EOS)]
    space = [
        [*body, EOS]
        for length in range(limit + 1)
        for body in itertools.product(words, repeat=length)
    ]
    log_p = log_probabilities(models, source[0], space)
    scores = log_p / np.array([PENALTIES[form](len(tokens), alpha) for tokens in space])
    ranking = np.argsort(-scores)

    settings = {
        "beam_size": len(space),
        "n_best": len(space),
        "length_penalty": alpha,
        "max_length": limit + 1,
    }
    hypotheses = search(
        models, source, [limit], forbid_unk=False, length_penalty_form=form, **settings
    )
    assert [output(row) for row in hypotheses.tokens[0]] == [space[i] for i in ranking]
    np.testing.assert_allclose(hypotheses.scores[0], scores[ranking], rtol=1e-5)
    np.testing.assert_allclose(
        hypotheses.token_log_probabilities[0].sum(axis=1), log_p[ranking], rtol=1e-5
    )


@pytest.mark.first_case
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_n_best_is_sorted_distinct_and_has_the_uncached_model_s_scores(dtype):
    model = tiny_model(VOCAB_SIZE, seed=2, dtype=dtype)
    sources = random_sources(6, 6, VOCAB_SIZE, seed=3)
    limits = (sources != PAD).sum(axis=1) + 3
    hypotheses = search([model], sources, limits, beam_size=4, n_best=4)
    assert (np.diff(hypotheses.scores, axis=1) <= 0).all()
    for row, source in enumerate(sources):
        outputs = [output(tokens) for tokens in hypotheses.tokens[row]]
        assert len({tuple(tokens) for tokens in outputs}) == 4
        uncached = teacher_forced([model], source, outputs)
        for log_p, tokens, row_log_p in zip(
            uncached, outputs, hypotheses.token_log_probabilities[row], strict=True
        ):
            token_log_p = log_p[np.arange(len(tokens)), tokens]
            np.testing.assert_allclose(
                row_log_p[: len(tokens)], token_log_p, atol=10 * TOLERANCE[dtype]
            )
            assert (row_log_p[len(tokens) :] == 0).all()
        expected = log_probabilities([model], source, outputs)
        divisors = [((5 + len(tokens)) / 6) ** 0.6 for tokens in outputs]
        np.testing.assert_allclose(
            hypotheses.scores[row], expected / divisors, rtol=TOLERANCE[dtype]
        )


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("form", "alpha", "n_best", "stopping", "shrinking", "changes"),
    [
        ("gnmt", 0.0, 1, "current", False, {}),
        ("gnmt", 0.0, 1, "ended", False, {}),
        ("gnmt", 0.6, 3, "current", False, SSRU),
        ("gnmt", 2.0, 1, "ended", False, {}),
        ("gnmt", 0.6, 2, "bound", False, {}),
        ("power", 0.6, 3, "ended", False, {}),
        ("power", 2.0, 2, "current", False, {}),
        ("power", 1.0, 3, "ended", True, {}),
        ("power", 1.0, 3, "current", True, {}),
    ],
)
def test_early_stopping_does_not_change_the_result(
    form, alpha, n_best, stopping, shrinking, changes
):
    """The reference is uncached, takes one sentence at a time, and knows only the rule of
    `stopping`.
    """
    model, beam_size = tiny_model(VOCAB_SIZE, seed=2, **changes), 3
    sources = random_sources(24, 6, VOCAB_SIZE, seed=5)
    limits = (sources != PAD).sum(axis=1) + 6
    settings = {
        "beam_size": beam_size,
        "n_best": n_best,
        "length_penalty": alpha,
        "length_penalty_form": form,
    }
    settings |= {"stopping": stopping, "shrinking_beam": shrinking}
    hypotheses = search([model], sources, limits, **settings)
    for source, limit, rows, scores in zip(
        sources, limits, hypotheses.tokens, hypotheses.scores, strict=True
    ):
        penalty_of = functools.partial(PENALTIES[form], alpha=alpha)
        expected = plain_search(model, source, limit, beam_size, penalty_of, stopping, shrinking)[
            :n_best
        ]
        assert [output(row) for row in rows[: len(expected)]] == [tokens for _, tokens in expected]
        np.testing.assert_allclose(
            scores[: len(expected)], [score for score, _ in expected], rtol=1e-4
        )


def plain_search(
    model, source, limit, beam_size, penalty_of, stopping, shrinking
) -> list[tuple[float, list[int]]]:
    def can_improve() -> bool:
        if len(ended) < beam_size:
            return True
        length = {"ended": None, "current": len(live[0][1]), "bound": limit + 1}[stopping]
        return length is not None and live[0][0] / penalty_of(length) > ended[-1][0]

    live, ended = [(0.0, [])], []
    while live and can_improve():
        padded = [[*tokens, *[EOS] * (16 - len(tokens))] for _, tokens in live]
        padded += [[EOS] * 16] * (beam_size - len(live))
        log_p = teacher_forced([model], source, padded)[:, len(live[0][1])]
        log_p[:, FORBIDDEN] = -np.inf
        extensions = [
            (total + row[token], [*tokens, token])
            for (total, tokens), row in zip(live, log_p, strict=False)
            for token in range(VOCAB_SIZE)
            if token == EOS or len(tokens) < limit
        ]
        extensions = sorted(
            (pair for pair in extensions if pair[0] > -np.inf), key=lambda pair: -pair[0]
        )
        if shrinking:
            extensions = extensions[: beam_size - len(ended)]
        ending = [(total, tokens) for total, tokens in extensions[:beam_size] if tokens[-1] == EOS]
        ended += [(total / penalty_of(len(tokens)), tokens) for total, tokens in ending]
        ended = sorted(ended, key=lambda pair: -pair[0])[:beam_size]
        live = [(log_p, tokens) for log_p, tokens in extensions if tokens[-1] != EOS][:beam_size]
    return ended


class NoCache(NamedTuple):
    def reorder(self, parents):
        return self


class Chain:
    """A model in which token 4 has 85 % and EOS a tenth; after five tokens EOS has 95 %."""

    def start_cache(self, source, beams, length):
        return NoCache()

    def decode_step(self, tokens, position, cache):
        p = jnp.full(6, 0.0125).at[EOS].set(0.1).at[4].set(0.85)
        at_end = jnp.full(6, 0.01).at[EOS].set(0.95)
        logits = jnp.log(jnp.where(position < 5, p, at_end))
        return jnp.broadcast_to(logits, (*tokens.shape, 6)), cache


@pytest.mark.first_case
@pytest.mark.parametrize("beam_size", [1, 2, 3, 5])
def test_bad_endings_that_fill_the_beam_do_not_end_the_search(beam_size):
    """By hand: the chain has score -0.6, the endings before it at most -2.2."""
    sentences = SourceBatch(jnp.array([[4, EOS]]), jnp.array([9]), 10)
    found = {}
    for stopping in STOPPING_RULES:
        decoding_config = make_decoding_config(beam_size=beam_size, stopping=stopping)
        hypotheses, _ = BeamSearch([Chain()], sentences, decoding_config, n_best=1).run()
        found[stopping] = output(np.array(hypotheses.tokens[0, 0]))
    chain = [4] * 5 + [EOS]
    assert found["current"] == found["bound"] == chain
    assert (found["ended"] == chain) == (beam_size == 1)


def test_neighbours_and_fillers_change_nothing():
    model = tiny_model(VOCAB_SIZE, seed=0)
    sources = random_sources(8, 6, VOCAB_SIZE, seed=6)
    limits = (sources != PAD).sum(axis=1) + 6
    together = search([model], sources, limits, beam_size=3, n_best=3)
    for row in range(len(sources)):
        batch = np.full_like(sources[:4], PAD)
        batch[2] = sources[row]
        alone = search([model], batch, [-1, -1, limits[row], -1], beam_size=3, n_best=3)
        np.testing.assert_array_equal(alone.tokens[2], together.tokens[row])
        np.testing.assert_allclose(alone.scores[2], together.scores[row], atol=1e-4)
        assert (alone.scores[[0, 1, 3]] == -np.inf).all()


@pytest.mark.parametrize("forbid_unk", [True, False])
def test_limits_hold_and_special_tokens_are_never_generated(forbid_unk):
    model = tiny_model(VOCAB_SIZE, seed=7)
    # Without the masks this model would generate mostly special tokens.
    model.parameters["decoder"]["embedding"]["table"][[PAD, BOS, UNK]] *= 20.0
    sources = random_sources(8, 6, VOCAB_SIZE, seed=8)
    limits = np.array([0, 1, 2, 3, 5, 7, 9, 11])
    hypotheses = search([model], sources, limits, beam_size=2, n_best=2, forbid_unk=forbid_unk)
    outputs = []
    for row, limit in zip(hypotheses.tokens, limits, strict=True):
        for tokens in map(output, row[:1] if limit == 0 else row):
            assert len(tokens) <= limit + 1
            assert PAD not in tokens and BOS not in tokens
            outputs.append(tokens)
    assert any(UNK in tokens for tokens in outputs) != forbid_unk


def test_an_empty_slot_has_score_minus_infinity():
    hypotheses = search(
        [tiny_model(VOCAB_SIZE, seed=0)],
        random_sources(1, 6, VOCAB_SIZE, seed=0),
        [0],
        beam_size=3,
        n_best=3,
    )
    assert output(hypotheses.tokens[0, 0]) == [EOS]
    assert np.isfinite(hypotheses.scores[0]).tolist() == [True, False, False]


def test_best_extensions_by_hand():
    log_p = jnp.array(
        [[[-9.0, -9.0, -9.0, -0.1, -1.0, -2.0], [-9.0, -9.0, -9.0, -0.1, -1.5, -1.0]]]
    )
    live = jnp.array([[-1.0, -2.0]])
    sentences = SourceBatch(jnp.zeros((1, 1), int), jnp.array([9]), max_length=9)
    searcher = BeamSearch([], sentences, make_decoding_config(beam_size=3), n_best=3)
    state = searcher.start()._replace(live_log_p=live)
    best, parents, tokens, gained = searcher.best_extensions(
        state, Prediction(log_p + 7.0, jnp.full((1, 2), 7.0)), 3
    )
    # Totals: -2 (hypothesis 0, token 4), -3 (0, 5), -3 (1, 5). EOS is no extension; the first wins
    # a tie.
    np.testing.assert_allclose(best, [[-2.0, -3.0, -3.0]])
    assert parents.tolist() == [[0, 0, 1]] and tokens.tolist() == [[4, 5, 5]]
    np.testing.assert_allclose(gained, [[-1.0, -2.0, -1.0]])


def test_length_penalty_by_hand():
    # ((5 + 1) / 6)^0.6 = 1 and ((5 + 7) / 6)^0.6 = 2^0.6
    np.testing.assert_allclose(
        LENGTH_PENALTIES["gnmt"](jnp.array([1, 7]), 0.6), [1.0, 1.5157166], rtol=1e-6
    )
    np.testing.assert_allclose(
        LENGTH_PENALTIES["power"](jnp.array([1, 4]), 0.5), [1.0, 2.0], rtol=1e-6
    )


def test_output_limits_are_rounded_up_once():
    def limits(length: int, factor: float, extra: int) -> list[int]:
        # of 0 to `length` tokens
        sources = np.where(np.arange(length) < np.arange(length + 1)[:, None], EOS, PAD)
        decoding_config = make_decoding_config(max_length_factor=factor, max_extra_length=extra)
        return output_limits(jnp.array(sources), decoding_config).tolist()

    assert limits(5, 1.0, 50) == [-1, 50, 51, 52, 53, 54]
    assert limits(11, 1.1, 0)[-2:] == [10, 11]  # in floating point 1.1 x 10 is above 11
    assert limits(4, 1.5, 2) == [-1, 2, 4, 5, 7]
