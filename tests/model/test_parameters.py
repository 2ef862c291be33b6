"""The number of parameters, by a closed formula, and their initialization."""

import math

import jax
import ml_collections
import numpy as np
import pytest
from flax import nnx

from configs import base, big
from tests.model.models import flat, tiny_config
from transformer.model.attention import MultiHeadAttention
from transformer.model.transformer import Transformer

SHAPES = [
    {"d_k": 16},
    {"d_model": 256, "d_k": 32, "d_v": 32},
    {"d_ff": 4096},
    {"d_v": 24, "attention_bias": True, "num_decoder_layers": 2},
    {"activation": "swiglu", "share_embeddings": "target", "norm_position": "pre"},
    {
        "attention": "additive",
        "share_embeddings": "none",
        "positions": "learned",
        "final_norm": True,
    },
    {"positions": "shaw", "num_key_heads": 2, "attention_bias": True},
    {"positions": "t5", "norm_position": "sandwich", "final_norm": False, "num_key_heads": 1},
    {"decoder_self_attention": "average", "norm": "rms_norm", "positions": "alibi"},
    {"decoder_self_attention": "ssru", "output_bias": True, "share_embeddings": "none"},
    {
        "positions": "t5_per_layer",
        "num_layers": 2,
        "activation": "geglu",
        "feed_forward_bias": False,
        "share_embeddings": "inputs",
    },
]


def model_config(change: dict) -> ml_collections.ConfigDict:
    config = base.get_config().model
    config.update(change)
    return config


def closed_formula(config: ml_collections.ConfigDict, source_vocab: int, target_vocab: int) -> int:
    d, heads = config.d_model, config.num_heads
    d_k = d // heads if config.d_k is None else config.d_k
    d_v = d // heads if config.d_v is None else config.d_v
    norm = d if config.norm == "rms_norm" else 2 * d
    norms = 2 if config.norm_position == "sandwich" else 1  # of a sub-layer
    key_heads = heads if config.num_key_heads is None else config.num_key_heads
    attention = d * (heads + key_heads) * (d_k + d_v)
    if config.attention_bias:
        attention += heads * d_k + key_heads * (d_k + d_v) + d
    if config.attention == "additive":
        attention += heads * d_k
    inner = 2 if config.activation in ("glu", "geglu", "swiglu") else 1
    bias = 1 if config.feed_forward_bias else 0
    feed_forward = inner * (d + bias) * config.d_ff + (config.d_ff + bias) * d
    encoder = config.num_layers * (attention + feed_forward + 2 * norms * norm)
    decoder_layers = (
        config.num_layers if config.num_decoder_layers is None else config.num_decoder_layers
    )
    self_attention = {
        "attention": attention,
        "ssru": (2 * d + 1) * d,
        "average": feed_forward + 2 * (2 * d + 1) * d,
    }
    others = attention + feed_forward + 3 * norms * norm
    decoder = decoder_layers * (self_attention[config.decoder_self_attention] + others)
    rows = {
        "all": target_vocab,
        "target": source_vocab + target_vocab,
        "inputs": 2 * target_vocab,
        "none": source_vocab + 2 * target_vocab,
    }
    total = encoder + decoder + rows[config.share_embeddings] * d
    if config.output_bias:
        total += target_vocab
    if config.positions == "learned":
        total += 2 * config.max_positions * d
    if config.positions == "shaw":
        total += (config.num_layers + decoder_layers) * heads * 33 * d_k
    if config.positions == "t5":
        total += 2 * 32 * heads
    if config.positions == "t5_per_layer":
        total += (config.num_layers + decoder_layers) * 32 * heads
    if config.final_norm or (config.final_norm is None and config.norm_position != "post"):
        total += 2 * norm
    return total


def count(config: ml_collections.ConfigDict, source_vocab: int, target_vocab: int) -> int:
    """Counts parameters from their shapes, without creating arrays."""
    model = nnx.eval_shape(
        lambda: Transformer(config, source_vocab, target_vocab, rngs=nnx.Rngs(0))
    )
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


@pytest.mark.parametrize("change", SHAPES, ids=str)
def test_every_shape_of_layer_has_as_many_as_the_formula_says(change):
    config = model_config({"num_layers": 1, **change})
    vocabularies = (70, 70) if config.share_embeddings in ("all", "inputs") else (70, 50)
    assert count(config, *vocabularies) == closed_formula(config, *vocabularies)


def test_base_and_big_have_as_many_as_the_formula_says():
    base_config, big_config = base.get_config().model, big.get_config().model
    assert count(base_config, 37_000, 37_000) == closed_formula(base_config, 37_000, 37_000)
    # Worked out from section 3 by hand, with the vocabulary that the paper states.
    assert round(closed_formula(base_config, 37_000, 37_000) / 1e6, 1) == 63.0
    assert round(closed_formula(big_config, 37_000, 37_000) / 1e6, 1) == 214.2


def test_every_matrix_is_drawn_within_the_bound_of_its_own_two_fans():
    config = tiny_config(
        num_layers=1, d_model=48, d_ff=80, num_heads=16, d_k=20, d_v=24, attention="additive",
        attention_bias=True, activation="glu", positions="learned", max_positions=50,
        share_embeddings="none", norm_position="pre", output_bias=True,
    )  # fmt: skip
    model = Transformer(config, 90, 70, rngs=nnx.Rngs(0))
    kinds = set()
    for path, values in flat(nnx.to_pure_dict(nnx.state(model, nnx.Param))):
        kind = path.split("/")[-1]
        if kind == "kernel":
            assert_uniform(values, math.sqrt(6 / sum(values.shape)), path)
        elif path.endswith("score/v"):
            assert values.shape == (16, 20)
            assert_uniform(values, math.sqrt(6 / (20 + 1)), path)
        elif kind == "table":
            kind = path.split("/")[-2]
            deviation = 1.0 if kind == "positions" else 48**-0.5
            assert values.std() == pytest.approx(deviation, rel=0.05), path
            assert abs(values.mean()) < 0.1 * deviation, path
            assert np.abs(values).max() > 2.5 * deviation, path  # normal, not uniform
        else:
            assert (values == {"bias": 0, "output_bias": 0, "scale": 1}[kind]).all(), path
        kinds.add(kind)
    assert kinds == {"kernel", "v", "embedding", "positions", "bias", "output_bias", "scale"}


def assert_uniform(values: np.ndarray, bound: float, path: str) -> None:
    largest = np.abs(values).max()
    assert bound * (1 - 10 / values.size) < largest <= bound, path
    assert values.std() == pytest.approx(bound / math.sqrt(3), rel=1.8 / math.sqrt(values.size)), (
        path
    )


def test_projections_of_512_by_512_have_that_matrix_s_bound():
    attention = MultiHeadAttention(base.get_config().model, rngs=nnx.Rngs(0))
    for linear in (attention.query, attention.key, attention.value, attention.output):
        assert np.abs(linear.kernel[...]).max() == pytest.approx(0.0765, abs=1e-4)
