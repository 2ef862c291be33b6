"""Layer normalization, compared with its formula differentiated by JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from transformer.model.norms import LayerNorm, RMSNorm

EPSILON = 1e-3


def layer_norm_of(size: int, dtype: str) -> LayerNorm:
    """Returns a module with random scales and biases."""
    module = LayerNorm(size, epsilon=EPSILON, dtype=dtype, rngs=nnx.Rngs(0))
    module.scale[...], module.bias[...] = 1.0 + 0.5 * jax.random.normal(
        jax.random.key(1), (2, size)
    )
    return module


def by_formula(x, scale, bias):
    centered = x - x.mean(-1, keepdims=True)
    normalized = centered / jnp.sqrt((centered**2).mean(-1, keepdims=True) + EPSILON)
    return normalized * scale[None, None] + bias[None, None]


@pytest.mark.first_case
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 1e-2)])
@pytest.mark.parametrize("mean", [0.0, 30.0])
def test_values_and_gradients_follow_the_formula(dtype, tolerance, mean):
    module = layer_norm_of(16, dtype)
    x, weight = jax.random.normal(jax.random.key(2), (2, 4, 6, 16)).astype(dtype)
    x = x + jnp.asarray(mean, dtype)

    def ours(x, scale, bias):
        graph = nnx.graphdef(module)
        y = nnx.merge(graph, nnx.State({"scale": scale, "bias": bias}))(x)
        assert y.dtype == dtype
        return jnp.sum(weight * y.astype(jnp.float32)), y

    def expected(x, scale, bias):
        y = by_formula(x, scale, bias)
        return jnp.sum(weight * y), y

    arguments = x, module.scale[...], module.bias[...]
    d_inputs, y = jax.grad(ours, argnums=(0, 1, 2), has_aux=True)(*arguments)
    gradients, values = jax.grad(expected, argnums=(0, 1, 2), has_aux=True)(
        *(a.astype("float32") for a in arguments)
    )
    assert [gradient.dtype for gradient in d_inputs] == [jnp.dtype(dtype), jnp.float32, jnp.float32]
    for actual, exact in zip((y, *d_inputs), (values, *gradients), strict=True):
        error = np.linalg.norm(np.asarray(actual, np.float64) - exact) / np.linalg.norm(exact)
        assert error < tolerance * (1 + mean / 10)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 1e-2)])
def test_rms_norm_divides_by_the_root_of_the_mean_square(dtype, tolerance):
    module = RMSNorm(16, epsilon=EPSILON, dtype=dtype, rngs=nnx.Rngs(0))
    module.scale[...] = 1.0 + 0.5 * jax.random.normal(jax.random.key(1), 16)
    x = (3.0 + jax.random.normal(jax.random.key(2), (4, 6, 16))).astype(dtype)
    wide = np.asarray(x, np.float64)
    expected = (
        wide / np.sqrt((wide**2).mean(-1, keepdims=True) + EPSILON) * np.asarray(module.scale[...])
    )
    assert module(x).dtype == dtype
    np.testing.assert_allclose(np.asarray(module(x), np.float64), expected, rtol=tolerance)
