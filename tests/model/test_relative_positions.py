"""Relative positions, and keys that heads share, against loops over queries, heads and keys that
follow the papers.
"""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.model.models import flat, random_model, tiny_config, tiny_transformer
from transformer.model.attention import MultiHeadAttention
from transformer.model.masks import Mask
from transformer.model.positions import make_positions
from transformer.model.relative_positions import RelativePositions, Shaw, T5Bias, t5_buckets

HEADS, WIDTH, D_MODEL, LENGTH = 4, 3, 8, 40  # more positions than Shaw's distance
POSITIONS = np.arange(LENGTH) + 5


def t5_bucket(distance: int, is_causal: bool) -> int:
    """The function of T5's paper for 32 buckets, in plain Python."""
    buckets, first, size = 32, 0, max(-distance, 0)
    if not is_causal:
        buckets, first, size = 16, 16 if distance > 0 else 0, abs(distance)
    exact = buckets // 2
    if size >= exact:
        part = math.log(size / exact) / math.log(128 / exact)
        size = min(exact + int(part * (buckets - exact) + 1e-6), buckets - 1)
    return first + size


def term(
    kind: str, parameters: dict, head: int, query: np.ndarray, distance: int, is_causal: bool
) -> float:
    """Returns what is added to the score of a query and the key at this distance."""
    if kind == "shaw":
        return (
            query @ parameters["vectors"][head, 16 + min(max(distance, -16), 16)] / math.sqrt(WIDTH)
        )
    if kind == "alibi":
        return -(0.25 ** (head + 1)) * abs(distance)  # 4 heads: ratios of 2^-2
    return parameters["table"][t5_bucket(distance, is_causal), head]


def naive(
    kind: str,
    module: MultiHeadAttention,
    relative_positions: RelativePositions,
    x: np.ndarray,
    is_causal: bool,
) -> np.ndarray:
    kernels = {
        path: array.astype(np.float64) for path, array in flat(nnx.to_pure_dict(nnx.state(module)))
    }
    added = {
        path: array.astype(np.float64)
        for path, array in flat(nnx.to_pure_dict(nnx.state(relative_positions)))
    }
    query, key, value = (x @ kernels[f"{name}/kernel"] for name in ("query", "key", "value"))
    shared = HEADS * WIDTH // key.shape[-1]  # heads that share a key
    out = np.zeros_like(query)
    for head in range(HEADS):
        own, group = np.arange(WIDTH) + head * WIDTH, np.arange(WIDTH) + head // shared * WIDTH
        for i in range(LENGTH):
            scores = [
                query[i, own] @ key[j, group] / math.sqrt(WIDTH)
                + (
                    0.0
                    if kind == "none"
                    else term(kind, added, head, query[i, own], j - i, is_causal)
                )
                for j in range(i + 1 if is_causal else LENGTH)
            ]
            weights = np.exp(scores) / np.sum(np.exp(scores))
            out[i, own] = weights @ value[: len(scores), group]
    return out @ kernels["output/kernel"]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kind", ["shaw", "alibi", "t5"])
def test_scores_have_the_term_of_the_paper(kind, is_causal):
    check(kind, 4, is_causal)


@pytest.mark.parametrize("num_key_heads", [1, 2])
def test_heads_share_keys_and_values_in_groups(num_key_heads):
    check("none", num_key_heads, is_causal=True)


def check(kind: str, num_key_heads: int, is_causal: bool) -> None:
    config = tiny_config(
        d_model=D_MODEL, num_heads=HEADS, d_k=WIDTH, d_v=WIDTH, num_key_heads=num_key_heads
    )
    config.positions = "sinusoidal" if kind == "none" else kind
    module = random_model(lambda: MultiHeadAttention(config, rngs=nnx.Rngs(0))).module
    relative_positions = random_model(
        lambda: make_positions(config, 1, is_causal=is_causal, rngs=nnx.Rngs(0))[1][0], 1
    ).module
    x = np.random.default_rng(2).normal(size=(1, LENGTH, D_MODEL)).astype(np.float32)
    ones = jnp.ones((1, LENGTH), int)
    mask = Mask(ones, ones, is_causal=is_causal, is_packed=False)
    out = module(
        jnp.asarray(x), jnp.asarray(x), mask, None, relative_positions, jnp.asarray(POSITIONS)[None]
    )
    np.testing.assert_allclose(
        out[0], naive(kind, module, relative_positions, x[0], is_causal), rtol=1e-4, atol=1e-5
    )


def test_t5_has_a_bucket_for_each_short_distance_and_one_for_all_from_128_on():
    distances = np.arange(-200, 201)
    for is_causal in (False, True):
        expected = [t5_bucket(distance, is_causal) for distance in distances]
        np.testing.assert_array_equal(t5_buckets(jnp.asarray(distances), is_causal), expected)
    # From the released model's code: both signs have 8 exact buckets, the decoder 16.
    assert [t5_bucket(d, False) for d in (0, -1, -7, -8, -127, -128, 1, 8, 500)] == [
        0,
        1,
        7,
        8,
        15,
        15,
        17,
        24,
        31,
    ]
    assert [t5_bucket(d, True) for d in (3, 0, -15, -16, -500)] == [0, 0, 15, 16, 31]


def test_layers_share_t5s_numbers_and_have_vectors_of_their_own_with_shaw():
    parameters = tiny_transformer(positions="t5", num_layers=3).parameters
    assert [*parameters["encoder"]["relations"]] == [*parameters["decoder"]["relations"]] == [0]
    assert parameters["encoder"]["relations"][0]["table"].shape == (32, 2)
    assert (
        len(tiny_transformer(positions="shaw", num_layers=3).parameters["encoder"]["relations"])
        == 3
    )


@pytest.mark.slow
def test_each_layer_has_its_own_numbers_of_t5_if_asked():
    module = tiny_transformer(positions="t5_per_layer", num_layers=3).module
    for stack in (module.encoder, module.decoder):
        tables = [relation.table[...] for relation in stack.relations]
        assert len(tables) == 3 and not np.array_equal(tables[0], tables[1])
        # With the same numbers in all layers, it is the shared kind.
        for relation in stack.relations:
            relation.table[...] = tables[0]
    shared = tiny_transformer(positions="t5", num_layers=3).module
    nnx.update(shared, nnx.state(module))
    inputs = jnp.arange(4, 10)[None], jnp.arange(3, 8)[None]
    np.testing.assert_array_equal(module(*inputs), shared(*inputs))


@pytest.mark.first_case
@pytest.mark.parametrize("kind", ["rotary", "shaw", "alibi", "t5", "t5_per_layer"])
def test_only_self_attention_sees_them(kind):
    """A sentence that moves in its row has the same logits; one with reordered words does not."""
    # Through a second layer a causal decoder would know the order without being told.
    model = tiny_transformer(positions=kind, num_layers=1).module
    source, target = jnp.arange(4, 10)[None], jnp.arange(3, 8)[None]
    logits = model(source, target)
    at = {"source_positions": 7 + jnp.arange(6)[None], "target_positions": 3 + jnp.arange(5)[None]}
    np.testing.assert_allclose(model(source, target, **at), logits, atol=1e-4)
    # A reversed sentence would have equal distances, which ALiBi has no sign for.
    assert not np.allclose(
        model(source[:, jnp.array([1, 0, 2, 3, 4, 5])], target), logits, atol=1e-2
    )
    assert not np.allclose(
        model(source, target[:, jnp.array([0, 2, 1, 3, 4])])[:, -1], logits[:, -1], atol=1e-2
    )


def test_initial_values():
    config = tiny_config(d_model=64, num_heads=4)
    vectors = Shaw(config, nnx.Rngs(0)).vectors[...]
    assert vectors.shape == (4, 33, 16)
    assert 0.9 < float(jnp.abs(vectors).max()) / math.sqrt(6 / (33 + 16)) <= 1
    assert float(T5Bias(config, False, nnx.Rngs(0)).table[...].std()) == pytest.approx(
        1 / 8, rel=0.3
    )
