"""The norm of the gradient, compared with Optax's."""

import jax
import jax.numpy as jnp
import optax
import pytest

from tests.meshes import one_device
from transformer.training.module_norms import global_norm

TREE = {
    "inner": {"kernel": jnp.arange(6.0).reshape(2, 3), "bias": jnp.array([1.0, -2.0, 3.0])},
    "embedding": {"table": -jnp.arange(20.0).reshape(5, 4)},
}


def test_the_norm_is_that_of_all_leaves_together():
    norm = jax.jit(lambda tree: global_norm(one_device(), tree))(TREE)
    assert float(norm) == pytest.approx(float(optax.tree.norm(TREE)), rel=1e-6)


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf])
def test_a_value_that_is_not_finite_shows(value):
    tree = {"kernel": jnp.ones((2, 2)).at[1, 0].set(value)}
    assert not jnp.isfinite(global_norm(one_device(), tree))
