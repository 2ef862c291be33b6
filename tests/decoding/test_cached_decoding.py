"""Cached decoding equals uncached: a step's logits are those of the whole model for the same tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.models import random_sources, tiny_model
from transformer.decoding import ensemble
from transformer.special_tokens import BOS

VOCAB_SIZE, BEAMS, LENGTH = 12, 3, 5
# Every two values of different settings come together at least once, except those that are refused together.
VARIANTS = [
    ("sinusoidal", "dot_product", "post"),
    ("sinusoidal", "additive", "pre"),
    ("sinusoidal_concatenated", "dot_product", "pre"),
    ("sinusoidal_concatenated", "additive", "post"),
    ("learned", "dot_product", "post"),
    ("learned", "additive", "pre"),
    ("rotary", "dot_product", "post"),
    ("rotary", "dot_product", "pre"),
]


@pytest.mark.parametrize(("positions", "attention", "norm_position"), VARIANTS)
def test_steps_equal_the_whole(positions, attention, norm_position):
    model = tiny_model(
        VOCAB_SIZE,
        seed=0,
        positions=positions,
        attention=attention,
        norm_position=norm_position,
        max_positions=8,
        d_k=4,
        d_v=5,
        attention_bias=True,
    )
    source = random_sources(3, 6, VOCAB_SIZE, seed=0)
    random = np.random.default_rng(1)
    tokens = random.integers(4, VOCAB_SIZE, (3, BEAMS, LENGTH)).astype(np.int32)
    tokens[:, :, 0] = BOS
    # At each step hypotheses are exchanged, so that the cache has to follow.
    parents = random.integers(0, BEAMS, (LENGTH, 3, BEAMS)).astype(np.int32)

    @jax.jit
    def stepwise(parameters):
        (whole,) = ensemble.merge([model.graph], [parameters])

        def step(cache, position):
            logits, cache = whole.decode_step(jnp.array(tokens)[:, :, position], position, cache)
            return cache.reorder(jnp.array(parents)[position]), logits

        cache = whole.start_cache(jnp.array(source), BEAMS, LENGTH + 2)
        return jax.lax.scan(step, cache, jnp.arange(LENGTH))[1]

    @jax.jit
    def at_once(parameters, history):
        (whole,) = ensemble.merge([model.graph], [parameters])
        return whole(jnp.repeat(jnp.array(source), BEAMS, axis=0), history.reshape(3 * BEAMS, -1))

    history = np.zeros((3, BEAMS, LENGTH), np.int32)
    for position, logits in enumerate(stepwise(model.parameters)):
        history[:, :, position] = tokens[:, :, position]
        expected = at_once(model.parameters, history)[:, position].reshape(3, BEAMS, VOCAB_SIZE)
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
        history = np.stack([row[parent] for row, parent in zip(history, parents[position], strict=True)])
