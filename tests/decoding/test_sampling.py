"""Sampling: the tokens that may be drawn, their frequencies, and independence of other lines."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.models import (
    TOLERANCE,
    log_probabilities,
    make_decoding_config,
    random_sources,
    tiny_model,
)
from transformer.decoding import ensemble
from transformer.decoding.beam_search import SourceBatch
from transformer.decoding.sampling import draw, sample, sample_keys
from transformer.support.special_tokens import EOS, PAD, UNK

LOG_P = np.log([0.4, 0.3, 0.2, 0.1])
DRAWS = 4000


def frequencies(temperature: float, top_k: int, top_p: float, epsilon: float) -> np.ndarray:
    keys = sample_keys(0, jnp.arange(1), DRAWS)
    # In reverse, since a row of -inf alone draws the first token.
    log_p = jnp.broadcast_to(jnp.array(LOG_P[::-1], jnp.float32), (1, DRAWS, len(LOG_P)))
    decoding_config = make_decoding_config(
        temperature=temperature, top_k=top_k, top_p=top_p, epsilon=epsilon
    )
    drawn = np.asarray(draw(keys, log_p, decoding_config))
    return np.bincount(drawn[0], minlength=len(LOG_P))[::-1] / DRAWS


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "epsilon", "expected"),
    [
        (1.0, 0, 1.0, 0.0, [0.4, 0.3, 0.2, 0.1]),
        (0.5, 0, 1.0, 0.0, [16 / 30, 9 / 30, 4 / 30, 1 / 30]),
        (1.0, 2, 1.0, 0.0, [4 / 7, 3 / 7, 0, 0]),
        (1.0, 9, 1.0, 0.0, [0.4, 0.3, 0.2, 0.1]),
        (1.0, 1, 1.0, 0.0, [1, 0, 0, 0]),
        (1.0, 0, 0.6, 0.0, [4 / 7, 3 / 7, 0, 0]),
        (1.0, 0, 0.8, 0.0, [4 / 9, 3 / 9, 2 / 9, 0]),
        (1.0, 0, 0.01, 0.0, [1, 0, 0, 0]),
        (1e-39, 0, 1.0, 0.0, [1, 0, 0, 0]),  # subnormal in float32
        (1e-300, 3, 0.9, 0.0, [1, 0, 0, 0]),
        (1e-3, 0, 1.0, 0.0, [1, 0, 0, 0]),
        # Of the two likeliest, 4/7 and 3/7, the first already has half of the probability.
        (1.0, 2, 0.5, 0.0, [1, 0, 0, 0]),
        (1.0, 0, 1.0, 0.25, [4 / 7, 3 / 7, 0, 0]),
        (1.0, 0, 1.0, 0.05, [0.4, 0.3, 0.2, 0.1]),
        (1.0, 0, 1.0, 0.9, [1, 0, 0, 0]),
        # With this temperature the likeliest have 16/30, 9/30 and 4/30.
        (0.5, 0, 1.0, 0.2, [16 / 25, 9 / 25, 0, 0]),
        (1.0, 3, 0.7, 0.25, [4 / 7, 3 / 7, 0, 0]),
    ],
)
def test_tokens_are_drawn_with_their_probabilities(temperature, top_k, top_p, epsilon, expected):
    drawn = frequencies(temperature, top_k, top_p, epsilon)
    # Four standard deviations of a binomial frequency; excluded tokens are never drawn.
    np.testing.assert_allclose(drawn, expected, atol=4 * np.sqrt(0.25 / DRAWS))
    assert (drawn[np.array(expected) == 0] == 0).all()


@functools.partial(jax.jit, static_argnums=(0, 4))
def run(graph, parameters, source, limits, settings, lines):
    sentences, config = (
        SourceBatch(source, limits, 10, lines),
        make_decoding_config(seed=3, **dict(settings)),
    )
    return sample(ensemble.build_models([graph], [parameters]), sentences, config, n_best=5)[0]


@pytest.mark.first_case
@pytest.mark.parametrize(("forbid_unk", "form"), [(True, "gnmt"), (False, "power")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_samples_end_and_have_the_model_s_scores_and_fillers_stay_empty(dtype, forbid_unk, form):
    model = tiny_model(12, seed=1, dtype=dtype)
    model.parameters["decoder"]["embedding"]["table"][UNK] *= 5.0
    sources = random_sources(4, 6, 12, seed=0)
    sources[1] = PAD
    limits = np.array([3, -1, 0, 9])
    settings = {
        "temperature": 2.0,
        "top_k": 6,
        "top_p": 0.9,
        "forbid_unk": forbid_unk,
        "length_penalty_form": form,
    }
    samples = run(
        model.graph,
        model.parameters,
        sources,
        limits,
        tuple(settings.items()),
        np.arange(4, dtype=np.int32),
    )
    samples = jax.device_get(samples)
    assert (samples.tokens[1] == PAD).all()
    for row in (0, 2, 3):
        outputs = [
            tokens[: tokens.tolist().index(EOS) + 1].tolist() for tokens in samples.tokens[row]
        ]
        assert max(map(len, outputs)) <= limits[row] + 1
        expected = log_probabilities([model], sources[row], outputs)
        sums = samples.token_log_probabilities[row].sum(axis=1)
        np.testing.assert_allclose(sums, expected, rtol=TOLERANCE[dtype])
        divisors = [
            (len(tokens) if form == "power" else (5 + len(tokens)) / 6) ** 0.6 for tokens in outputs
        ]
        np.testing.assert_allclose(samples.scores[row], expected / divisors, rtol=TOLERANCE[dtype])
    assert len({tuple(tokens) for tokens in samples.tokens[3].tolist()}) > 1
    assert (UNK in samples.tokens) != forbid_unk


def test_keys_depend_only_on_seed_line_and_sample_number():
    def data(lines: list[int], count: int, seed: int = 0) -> np.ndarray:
        return np.asarray(jax.random.key_data(sample_keys(seed, jnp.array(lines), count)))

    keys = data([4, 9], 3)
    np.testing.assert_array_equal(keys[1], data([9], 3)[0])
    np.testing.assert_array_equal(keys[:, :2], data([4, 9], 2))
    assert (
        len(np.unique(np.concatenate([keys, data([4, 9], 3, seed=1)]).reshape(-1, 2), axis=0)) == 12
    )
