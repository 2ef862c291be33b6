"""The largest elements and the normalizer by groups are those that JAX computes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.decoding.top_k import BEST_GROUP_SIZE, logsumexp, top_k

# Groups of the best size, of 60, of 64 with padding, of 115 and of 127, and a row without groups.
# 7 groups are as many as the elements that the test looks for.
SIZES = [BEST_GROUP_SIZE * 30, 1500, 1931, 575, 7 * 127, 8 * 127, 7]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("values", [3, 1_000_000])
def test_equals_the_search_without_groups(size, values):
    # Of 3 values nearly all are equal: the first of them have to win.
    x = np.random.default_rng(0).integers(0, values, (2, 5, size)).astype(np.float32)
    x[:, 1] = -np.inf
    x[:, 2, size // 2 :] = -np.inf
    for expected, actual in zip(jax.lax.top_k(x, 7), top_k(jnp.asarray(x), 7), strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("size", SIZES)
def test_the_normalizer_is_that_of_all_elements(size):
    # Without the maximum, the exponentials would overflow.
    x = 50.0 * np.random.default_rng(0).normal(size=(2, 5, size)).astype(np.float32)
    x[:, 2, size // 2 :] = -np.inf
    expected = np.logaddexp.reduce(x.astype(np.float64), axis=-1)
    np.testing.assert_allclose(jax.jit(logsumexp)(x), expected, rtol=1e-6)
