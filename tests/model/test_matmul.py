"""Matmuls in the form for CPUs equal the plain ones."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.model import matmul

SHAPES = [(1, 1, 1), (3, 5, 7), (64, 512, 48), (130, 33, 257), (1, 512, 2048)]
# A sum of K products of bfloat16 numbers is exact up to the rounding of float32; a result in
# bfloat16 has 8 bits.
TOLERANCE = {"float32": 1e-5, "bfloat16": 2**-8}


@pytest.mark.first_case
@pytest.mark.parametrize("size", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_products_equal_those_in_float64(size, dtype, platform, monkeypatch):
    monkeypatch.setattr(matmul, "target_platform", lambda: platform)
    m, k, n = size
    random = np.random.default_rng(0)
    x, w = (jnp.asarray(random.normal(size=shape), dtype) for shape in ((m, k), (k, n)))
    exact_x, exact_w = (np.asarray(array, np.float64) for array in (x, w))
    # XLA for GPUs multiplies a single row by a matrix without the matrix units and rounds the
    # products too.
    rounding = TOLERANCE[dtype] * (2 if m == 1 and jax.default_backend() == "gpu" else 1)
    tolerance = {"rtol": rounding, "atol": rounding * np.sqrt(k)}

    y = jax.jit(lambda x, w: matmul.matmul(x, w, jnp.dtype(dtype)))(x, w)
    assert y.dtype == dtype
    np.testing.assert_allclose(np.asarray(y, np.float64), exact_x @ exact_w, **tolerance)
    y = jax.jit(lambda x, w: matmul.matmul_nt(x, w.T, jnp.dtype(dtype)))(x, w)
    np.testing.assert_allclose(np.asarray(y, np.float64), exact_x @ exact_w, **tolerance)
    y = jax.jit(lambda x, w: matmul.matmul_tn(x.T, w))(x, w)
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(
        np.asarray(y, np.float64), exact_x @ exact_w, rtol=1e-5, atol=1e-5 * np.sqrt(k)
    )


@pytest.mark.parametrize(("rows", "is_turned"), [(64, True), (65, False)])
def test_few_rows_are_the_right_operand_of_a_float32_product(rows, is_turned, monkeypatch):
    monkeypatch.setattr(matmul, "is_for_one_cpu", lambda: True)
    x, w = jnp.zeros((rows, 32)), jnp.zeros((48, 32))
    text = str(jax.make_jaxpr(lambda x, w: matmul.matmul_nt(x, w, jnp.dtype("float32")))(x, w))
    assert (f"f32[48,{rows}] = dot_general" in text) is is_turned


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_matmuls_of_attention_and_their_gradients_are_those_of_einsum(dtype):
    """In bfloat16 CPUs have their own form, whose sums are float32."""
    rng = np.random.default_rng(0)
    queries = rng.normal(size=(2, 5, 3, 4)).astype(dtype)
    keys, values = rng.normal(size=(2, 2, 7, 3, 4)).astype(dtype)
    scores_weights = rng.normal(size=(2, 3, 5, 7)).astype(np.float32)
    heads_weights = rng.normal(size=(2, 5, 3, 4)).astype(dtype)

    def attend(query_key, weight_value, queries, keys, values):
        scores = query_key(queries, keys)
        heads = weight_value(jax.nn.softmax(scores), values)
        return jnp.sum(scores_weights * scores) + jnp.sum(heads_weights * heads), heads

    def gradients(query_key, weight_value, *arrays):
        function = functools.partial(attend, query_key, weight_value)
        gradient = jax.grad(function, argnums=(0, 1, 2), has_aux=True)
        results, heads = gradient(*map(jnp.asarray, arrays))
        assert {x.dtype for x in (*results, heads)} == {arrays[0].dtype}
        return [*results, heads]

    expected = gradients(
        lambda q, k: jnp.einsum("bthd,bshd->bhts", q, k),
        lambda w, v: jnp.einsum("bhts,bshd->bthd", w, v),
        *(x.astype(np.float32) for x in (queries, keys, values)),
    )
    actual = gradients(matmul.query_key_matmul, matmul.weight_value_matmul, queries, keys, values)
    tolerance = {"float32": 1e-5, "bfloat16": 0.03}[dtype]
    for x, exact in zip(actual, expected, strict=True):
        np.testing.assert_allclose(x.astype(np.float32), exact, rtol=tolerance, atol=tolerance)
