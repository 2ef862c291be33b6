"""Matmuls in the form for CPUs equal the plain ones."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from transformer.model import matmul
from transformer.model.embedding import Embedding
from transformer.model.linear import Linear

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


@pytest.mark.parametrize("rows", [4, 64, 65])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_transposed_kernel_gives_the_same_linear_map(rows, dtype):
    linear = Linear(96, 48, dtype=dtype, rngs=nnx.Rngs(0))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(rows, 96)), dtype)
    expected, kernel = linear(x), linear.kernel[...]
    linear.kernel = nnx.Param(matmul.decoding_weight(kernel, jnp.dtype(dtype)))
    np.testing.assert_array_equal(linear.transposed_weight, kernel.T.astype(dtype))
    y, tolerance = jax.jit(linear)(x), TOLERANCE[dtype]
    assert y.dtype == expected.dtype and y.shape == expected.shape
    np.testing.assert_allclose(
        y.astype(np.float32), expected.astype(np.float32), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_rows_are_rounded_to_127_steps_of_their_largest_number(array):
    rows = (
        np.random.default_rng(0).normal(size=(5, 40)).astype(np.float32)
        * np.float32(10.0) ** np.arange(-2, 3)[:, None]
    )
    rows[1] = 0.0
    quantized = matmul.quantize(array(rows))
    assert isinstance(quantized.integers, type(array(rows))) and quantized.integers.dtype == np.int8
    assert np.abs(quantized.integers.astype(int)).max(axis=1).tolist() == [127, 0, 127, 127, 127]
    error = np.abs(matmul.dequantize(jax.tree.map(jnp.asarray, quantized)) - rows)
    assert (error <= np.abs(rows).max(axis=1, keepdims=True) / 254 * 1.001).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_quantized_kernel_multiplies_integers_and_each_row_by_itself(dtype):
    linear = Linear(96, 48, dtype=dtype, rngs=nnx.Rngs(0))
    linear.bias[...] = jnp.arange(48.0)
    x = (
        jnp.asarray(np.random.default_rng(0).normal(size=(3, 5, 96)), dtype)
        .at[0, 1]
        .mul(100)
        .at[2, 4]
        .set(0)
    )
    exact, kernel = np.asarray(linear(x), np.float64), np.asarray(linear.kernel[...], np.float64)
    linear.kernel = nnx.Param(matmul.quantize(linear.kernel[...].T))
    y = jax.jit(linear)(x)
    assert y.dtype == dtype

    rows = np.asarray(x, np.float64).reshape(-1, 96)
    steps, columns = np.abs(rows).max(axis=1, keepdims=True) / 127, np.abs(kernel).max(axis=0) / 127
    integers = np.round(rows / np.where(steps == 0, 1, steps)) @ np.round(kernel / columns)
    expected = (integers * steps * columns + np.arange(48)).reshape(3, 5, 48)
    np.testing.assert_allclose(
        np.asarray(y, np.float64), expected, rtol=2 * TOLERANCE[dtype], atol=TOLERANCE[dtype] * 100
    )
    # 1 % of the norm of each row.
    error = np.linalg.norm(expected - exact, axis=-1) / np.linalg.norm(
        exact - np.arange(48), axis=-1
    ).clip(1e-9)
    assert error[:2].max() < (0.015 if dtype == "float32" else 0.1)
    np.testing.assert_allclose(linear.transposed_weight.T, kernel, atol=columns.max() / 2 * 1.001)
    alone = jax.jit(linear)(x[1:2, 2:3])
    np.testing.assert_array_equal(alone[0, 0], y[1, 2])


def test_a_quantized_row_that_is_not_finite_stays_so():
    x = jnp.ones((3, 8)).at[1, 2].set(jnp.nan).at[2, 3].set(jnp.inf)
    y = matmul.quantized_matmul(x, matmul.quantize(jnp.ones((4, 8))))
    np.testing.assert_array_equal(jnp.isnan(y).all(axis=1), [False, True, True])


@pytest.mark.parametrize(("rows", "is_turned"), [(64, True), (65, False)])
def test_few_rows_are_the_right_operand_of_a_float32_product(rows, is_turned, monkeypatch):
    monkeypatch.setattr(matmul, "is_for_one_cpu", lambda: True)
    x, w = jnp.zeros((rows, 32)), jnp.zeros((48, 32))
    text = str(jax.make_jaxpr(lambda x, w: matmul.matmul_nt(x, w, jnp.dtype("float32")))(x, w))
    assert (f"f32[48,{rows}] = dot_general" in text) is is_turned


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_accelerators_look_up_rounded_embeddings(platform, monkeypatch):
    monkeypatch.setattr(matmul, "target_platform", lambda: platform)
    embedding = Embedding(7, 6, dtype="float32", rngs=nnx.Rngs(0))
    table = np.asarray(embedding.table[...])
    stored = matmul.decoding_table(table, jnp.dtype("bfloat16"))
    rounded = table.astype("bfloat16").astype(np.float32)
    expected = table if platform == "cpu" else rounded
    np.testing.assert_array_equal(np.asarray(stored, np.float32), expected)

    # The scale is not rounded.
    embedding.table = nnx.Param(stored)
    vectors = embedding(jnp.array([[3, 1]]))
    np.testing.assert_array_equal(vectors, [expected[[3, 1]] * np.float32(np.sqrt(6))])


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
