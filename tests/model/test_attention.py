"""Attention against loops that follow the equations, what it gives rows that may see nothing, and
its weights.
"""

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.model.models import (
    SMALL,
    VOCAB,
    batch_of,
    flat,
    random_model,
    sentences,
    tiny_config,
    tiny_transformer,
)
from transformer.model.attention import MultiHeadAttention
from transformer.model.masks import Mask
from transformer.model.single_stack import LanguageModel
from transformer.model.transformer import attention_weights

HEADS, D_K, D_V, D_MODEL = 2, 3, 5, 4


def attention(kind: str, use_bias: bool = True) -> MultiHeadAttention:
    widths = {"d_model": D_MODEL, "num_heads": HEADS, "d_k": D_K, "d_v": D_V}
    config = tiny_config(attention=kind, attention_bias=use_bias, **widths)
    return random_model(lambda: MultiHeadAttention(config, rngs=nnx.Rngs(0))).module


def naive(module: MultiHeadAttention, queries, keys_values, mask, kind: str) -> np.ndarray:
    """One query, one head, one key at a time."""
    parameters = {
        path: array.astype(np.float64) for path, array in flat(nnx.to_pure_dict(nnx.state(module)))
    }

    def project(name: str, x: np.ndarray) -> np.ndarray:
        return x @ parameters[f"{name}/kernel"] + parameters[f"{name}/bias"]

    out = np.zeros((*queries.shape[:2], D_MODEL))
    for b, t in np.ndindex(queries.shape[:2]):
        heads = []
        for h in range(HEADS):
            query = project("query", queries[b, t])[h * D_K : (h + 1) * D_K]
            scores, values = [], []
            for s in np.flatnonzero(mask[b, 0, t]):
                key = project("key", keys_values[b, s])[h * D_K : (h + 1) * D_K]
                if kind == "additive":
                    scores.append(sum(parameters["score/v"][h] * np.tanh(query + key)))
                else:
                    scores.append(query @ key / (math.sqrt(D_K) if kind == "dot_product" else 1.0))
                values.append(project("value", keys_values[b, s])[h * D_V : (h + 1) * D_V])
            exponentials = np.exp(scores)
            heads.append(
                sum(e * value for e, value in zip(exponentials, values, strict=True))
                / sum(exponentials)
            )
        out[b, t] = project("output", np.concatenate(heads))
    return out


@pytest.mark.parametrize("kind", ["dot_product", "dot_product_unscaled", "additive"])
def test_attention_equals_a_loop_over_queries_heads_and_keys(kind):
    random = np.random.default_rng(0)
    queries = random.normal(size=(2, 3, D_MODEL)).astype(np.float32)
    keys_values = random.normal(size=(2, 4, D_MODEL)).astype(np.float32)
    mask = random.random((2, 1, 3, 4)) < 0.6
    mask[..., 0] = True
    module = attention(kind)
    keys, values = module.project_keys_values(jnp.asarray(keys_values))
    out = module.attend(
        module.project_queries(jnp.asarray(queries)), keys, values, jnp.asarray(mask)
    )
    np.testing.assert_allclose(
        out, naive(module, queries, keys_values, mask, kind), rtol=1e-5, atol=1e-5
    )


def test_a_query_that_may_see_nothing_gets_zeros_and_harmless_gradients():
    module = attention("dot_product", use_bias=False)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 3, D_MODEL)).astype(np.float32))
    mask = Mask(jnp.asarray([[1, 0, 1]]), jnp.ones((1, 3), int), is_causal=False, is_packed=False)

    def loss(x):
        out = module(x, x, mask)
        return jnp.square(out).sum(), out

    gradient, out = jax.grad(loss, has_aux=True)(x)
    assert (out[0, 1] == 0).all() and (out[0, 0] != 0).all()
    assert np.isfinite(gradient).all() and (gradient != 0).any()


def test_masks_keep_sentences_apart_and_hide_padding_and_the_future():
    queries, keys = jnp.asarray([[1, 1, 2, 0]]), jnp.asarray([[1, 2, 2, 0]])
    cross = [[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    np.testing.assert_array_equal(
        Mask(queries, keys, False, True).dense[0, 0], np.array(cross, bool)
    )
    causal = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    np.testing.assert_array_equal(
        Mask(queries, queries, True, True).dense[0, 0], np.array(causal, bool)
    )


def test_attention_weights_of_every_layer_and_head():
    model = tiny_transformer(num_decoder_layers=3)
    batch = batch_of(sentences([(7, 3), (4, 6), (8, 1)]), [0, 1, 2], SMALL)
    weights = attention_weights(model.module, batch["source"], batch["target_input"])
    assert {name: array.shape for name, array in weights.items()} == {
        "encoder": (2, 3, 2, 8, 8), "decoder": (3, 3, 2, 6, 6), "cross": (3, 3, 2, 6, 8),
    }  # fmt: skip
    source, target = np.asarray(batch["source"] != 0), np.asarray(batch["target_input"] != 0)
    sees = {
        "encoder": source[:, :, None] & source[:, None],
        "decoder": target[:, :, None] & target[:, None] & np.tri(6, dtype=bool),
        "cross": target[:, :, None] & source[:, None],
    }
    for name, array in weights.items():
        mask = np.broadcast_to(sees[name][None, :, None], array.shape)
        assert (np.asarray(array)[~mask] == 0).all() and (np.asarray(array)[mask] > 0).all()
        np.testing.assert_allclose(array.sum(-1), mask.any(-1), atol=1e-6)
    np.testing.assert_allclose(
        weights["encoder"][0, 0], first_layer_by_hand(model, batch["source"][0]), atol=1e-6
    )


def test_attention_weights_of_a_stack_alone_are_those_it_has_in_the_whole():
    model, batch = (
        tiny_transformer().module,
        batch_of(sentences([(7, 3), (4, 6), (8, 1)]), [0, 1, 2], SMALL),
    )
    source, target = batch["source"], batch["target_input"]
    whole = attention_weights(model, source, target)
    alone = attention_weights(model.encoder, source)
    assert alone.keys() == {"encoder"}
    alone |= attention_weights(model.decoder, target, model.encode(source))
    assert alone.keys() == whole.keys()
    for name in whole:
        np.testing.assert_array_equal(alone[name], whole[name])


@pytest.mark.slow
def test_other_threads_may_run_models_while_attention_weights_are_read():
    tokens, reads, free = jnp.asarray([[5, 6, 7]]), threading.Event(), threading.Event()

    class Slow(nnx.Module):
        def __init__(self, encoder):
            self.encoder = encoder

        def __call__(self, tokens):
            reads.set()
            free.wait(30)
            return self.encoder(tokens)

    slow, other = Slow(tiny_transformer().module.encoder), tiny_transformer().module.encoder
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(attention_weights, slow, tokens)
        reads.wait(30)
        states = (
            nnx.state(other, nnx.Intermediate),
            other(tokens),
            nnx.state(other, nnx.Intermediate),
        )
        free.set()
    assert not states[0] and not states[2]  # the results of its methods are not kept
    np.testing.assert_array_equal(
        future.result()["encoder"], attention_weights(other, tokens)["encoder"]
    )


@pytest.mark.slow
def test_attention_weights_of_a_language_model():
    config, tokens = tiny_config(), jnp.asarray([[2, 5, 6, 7], [2, 8, 0, 0]])
    weights = attention_weights(
        random_model(lambda: LanguageModel(config, VOCAB, rngs=nnx.Rngs(0))).module, tokens
    )
    assert {name: array.shape for name, array in weights.items()} == {"decoder": (2, 2, 2, 4, 4)}
    np.testing.assert_allclose(
        weights["decoder"].sum(-1)[0, :, 0], [[1, 1, 1, 1], [1, 1, 0, 0]], atol=1e-6
    )


def first_layer_by_hand(model, source) -> np.ndarray:
    """The encoder's first weights for one sentence: softmax(QK^T / sqrt(d_k)) of embeddings and
    positions.
    """
    encoder = model.parameters["encoder"]["layers"][0]["self_attention"]
    table = np.asarray(model.parameters["decoder"]["embedding"]["table"], np.float64)
    angles = np.arange(8)[:, None] / 10_000 ** (np.arange(0, 16, 2) / 16)
    x = table[np.asarray(source)] * 4.0
    x[:, 0::2] += np.sin(angles)
    x[:, 1::2] += np.cos(angles)
    queries, keys = ((x @ encoder[name]["kernel"]).reshape(8, 2, 8) for name in ("query", "key"))
    exponentials = np.exp(np.einsum("qhd,khd->hqk", queries, keys) / math.sqrt(8))
    exponentials *= np.outer(source != 0, source != 0)
    return exponentials / np.maximum(exponentials.sum(-1, keepdims=True), 1e-30)
