"""Linear maps by stored weights equal those by the weights of training, up to rounding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from transformer.model import stored_weights
from transformer.model.embedding import Embedding
from transformer.model.linear import Linear

# A result in bfloat16 has 8 bits.
TOLERANCE = {"float32": 1e-5, "bfloat16": 2**-8}


@pytest.mark.first_case
@pytest.mark.parametrize("rows", [4, 64, 65])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_transposed_kernel_gives_the_same_linear_map(rows, dtype):
    linear = Linear(96, 48, dtype=dtype, rngs=nnx.Rngs(0))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(rows, 96)), dtype)
    expected, kernel = linear(x), linear.kernel[...]
    linear.kernel = nnx.Param(stored_weights.decoding_weight(kernel, jnp.dtype(dtype)))
    np.testing.assert_array_equal(
        stored_weights.transposed(linear.kernel.get_value()), kernel.T.astype(dtype)
    )
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
    quantized = stored_weights.quantize(array(rows))
    assert isinstance(quantized.integers, type(array(rows))) and quantized.integers.dtype == np.int8
    assert np.abs(quantized.integers.astype(int)).max(axis=1).tolist() == [127, 0, 127, 127, 127]
    error = np.abs(stored_weights.dequantize(jax.tree.map(jnp.asarray, quantized)) - rows)
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
    linear.kernel = nnx.Param(stored_weights.quantize(linear.kernel[...].T))
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
    np.testing.assert_allclose(
        stored_weights.transposed(linear.kernel.get_value()).T,
        kernel,
        atol=columns.max() / 2 * 1.001,
    )
    alone = jax.jit(linear)(x[1:2, 2:3])
    np.testing.assert_array_equal(alone[0, 0], y[1, 2])


def test_a_quantized_row_that_is_not_finite_stays_so():
    x = jnp.ones((3, 8)).at[1, 2].set(jnp.nan).at[2, 3].set(jnp.inf)
    y = stored_weights.quantized_matmul(x, stored_weights.quantize(jnp.ones((4, 8))))
    np.testing.assert_array_equal(jnp.isnan(y).all(axis=1), [False, True, True])


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_accelerators_look_up_rounded_embeddings(platform, monkeypatch):
    monkeypatch.setattr(stored_weights, "target_platform", lambda: platform)
    embedding = Embedding(7, 6, dtype="float32", rngs=nnx.Rngs(0))
    table = np.asarray(embedding.table[...])
    stored = stored_weights.decoding_table(table, jnp.dtype("bfloat16"))
    rounded = table.astype("bfloat16").astype(np.float32)
    expected = table if platform == "cpu" else rounded
    np.testing.assert_array_equal(np.asarray(stored, np.float32), expected)

    # The scale is not rounded.
    embedding.table = nnx.Param(stored)
    vectors = embedding(jnp.array([[3, 1]]))
    np.testing.assert_array_equal(vectors, [expected[[3, 1]] * np.float32(np.sqrt(6))])
