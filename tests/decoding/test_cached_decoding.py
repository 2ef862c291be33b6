"""The logits of cached decoding, step by step, equal those of the uncached model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.models import random_sources, tiny_model
from transformer.decoding import ensemble
from transformer.model import cache
from transformer.support.special_tokens import BOS

VOCAB_SIZE, BEAMS, LENGTH = 12, 3, 5
# Every pair of values of different settings that may be combined occurs at least once.
VARIANTS = [
    ("sinusoidal", "dot_product", "post", "float32"),
    ("sinusoidal", "additive", "pre", "bfloat16"),
    ("sinusoidal_concatenated", "dot_product", "pre", "bfloat16"),
    ("sinusoidal_concatenated", "additive", "post", "float32"),
    ("learned", "dot_product", "post", "bfloat16"),
    ("learned", "additive", "pre", "float32"),
    ("rotary", "dot_product", "post", "bfloat16"),
    ("rotary", "dot_product", "pre", "float32"),
]
KEYS = ("positions", "attention", "norm_position", "dtype")
SETTINGS = [dict(zip(KEYS, variant, strict=True)) for variant in VARIANTS]
SETTINGS += [
    {"decoder_self_attention": "ssru", "output_bias": True},
    {
        "decoder_self_attention": "ssru",
        "positions": "rotary",
        "norm_position": "pre",
        "dtype": "bfloat16",
    },
    {"decoder_self_attention": "average", "norm": "rms_norm"},
    {"positions": "shaw", "num_key_heads": 1, "norm_position": "sandwich"},
    {"positions": "alibi", "num_key_heads": 1, "norm": "rms_norm", "dtype": "bfloat16"},
    {"positions": "t5", "attention": "additive"},
    {
        "positions": "t5_per_layer",
        "attention": "dot_product_unscaled",
        "feed_forward_bias": False,
        "norm": "rms_norm",
        "norm_position": "pre",
        "share_embeddings": "inputs",
    },
    {
        "decoder_start": "zero",
        "positions": "sinusoidal_marian",
        "activation": "gelu_exact",
        "source_eos": False,
    },
]
# bfloat16 has 8 bits of precision; each sub-layer rounds its output.
TOLERANCE = {"float32": {"rtol": 1e-4, "atol": 1e-5}, "bfloat16": {"rtol": 0.05, "atol": 0.1}}


@pytest.mark.first_case
@pytest.mark.parametrize(
    "settings", SETTINGS, ids=lambda settings: "-".join(map(str, settings.values()))
)
def test_cached_steps_equal_the_uncached_model(settings, monkeypatch):
    monkeypatch.setattr(cache, "PART_ENTRIES", 4)  # several parts, which fill one after another
    model = tiny_model(
        VOCAB_SIZE, seed=0, max_positions=8, d_k=4, d_v=5, attention_bias=True, **settings
    )
    source = random_sources(3, 6, VOCAB_SIZE, seed=0)
    random = np.random.default_rng(1)
    tokens = random.integers(4, VOCAB_SIZE, (3, BEAMS, LENGTH)).astype(np.int32)
    tokens[:, :, 0] = BOS
    # Each step permutes the hypotheses, and the cache has to follow.
    parents = random.integers(0, BEAMS, (LENGTH, 3, BEAMS)).astype(np.int32)

    @jax.jit
    def stepwise(parameters):
        (network,) = ensemble.build_models([model.graph], [parameters])

        def step(cache, position):
            logits, cache = network.decode_step(jnp.array(tokens)[:, :, position], position, cache)
            return cache.reorder(jnp.array(parents)[position]), logits

        cache = network.start_cache(jnp.array(source), BEAMS, LENGTH + 2)
        return jax.lax.scan(step, cache, jnp.arange(LENGTH))[1]

    @jax.jit
    def at_once(parameters, history):
        (network,) = ensemble.build_models([model.graph], [parameters])
        return network(jnp.repeat(jnp.array(source), BEAMS, axis=0), history.reshape(3 * BEAMS, -1))

    history = np.zeros((3, BEAMS, LENGTH), np.int32)
    for position, logits in enumerate(stepwise(model.parameters)):
        history[:, :, position] = tokens[:, :, position]
        expected = at_once(model.parameters, history)[:, position].reshape(3, BEAMS, VOCAB_SIZE)
        np.testing.assert_allclose(logits, expected, **TOLERANCE[settings.get("dtype", "float32")])
        history = np.stack(
            [row[parent] for row, parent in zip(history, parents[position], strict=True)]
        )
