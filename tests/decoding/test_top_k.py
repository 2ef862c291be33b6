"""The search for the largest elements by groups gives what `jax.lax.top_k` gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.decoding.top_k import GROUP, top_k


@pytest.mark.parametrize("size", [GROUP * 30, GROUP * 30 + 1, 7, GROUP * 9 - 1])
@pytest.mark.parametrize("values", [3, 1_000_000])
def test_equals_the_search_without_groups(size, values):
    # Of 3 values nearly all are equal: the first of them have to win.
    x = np.random.default_rng(0).integers(0, values, (2, 5, size)).astype(np.float32)
    x[:, 1] = -np.inf
    x[:, 2, size // 2 :] = -np.inf
    for expected, actual in zip(jax.lax.top_k(x, 7), top_k(jnp.asarray(x), 7), strict=True):
        np.testing.assert_array_equal(actual, expected)
