"""Muon over stacks of matrices, compared with Optax's, which takes one matrix at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

from tests.training.tiny import distance, tiny_config
from transformer.training.optimizer import make_optimizer

RATE = optax.constant_schedule(0.1)
# Matrices of three shapes, two of them equal, and what Adam updates.
SHAPES = {
    "query": {"kernel": (8, 8), "bias": (8,)},
    "output": {"kernel": (8, 8), "bias": (8,)},
    "inner": {"kernel": (8, 16)},
    "outer": {"kernel": (16, 8)},
    "projection": {"kernel": (24, 8)},
    "embedding": {"table": (24, 8)},
}


def is_shape(node) -> bool:
    return isinstance(node, tuple)


def by_optax(config) -> optax.GradientTransformation:
    def dimensions(path, leaf):
        names = [key.key for key in path]
        is_inner = names[-1] == "kernel" and "projection" not in names
        return optax.contrib.MuonDimensionNumbers() if is_inner else None

    return optax.contrib.muon(
        RATE,
        eps=config.epsilon,
        adam_b1=config.beta1,
        adam_b2=config.beta2,
        muon_weight_dimension_numbers=lambda tree: jax.tree_util.tree_map_with_path(
            dimensions, tree
        ),
        consistent_rms=0.2,
    )


@pytest.mark.parametrize("epsilon", [1e-9, 0.5])
def test_updates_and_state_are_those_of_optax(epsilon):
    config = tiny_config(optimizer__epsilon=epsilon, optimizer__name="muon").optimizer
    random = np.random.default_rng(0)
    trees = [
        jax.tree.map(lambda shape: random.normal(size=shape), SHAPES, is_leaf=is_shape)
        for _ in range(3)
    ]
    parameters, *gradients = jax.tree.map(jnp.float32, trees)
    transformations = make_optimizer(config, RATE), by_optax(config)
    # Checkpoints of either restore into the other.
    ours, expected = (transformation.init(parameters) for transformation in transformations)
    assert jax.tree.structure(ours) == jax.tree.structure(expected)
    updates = [jax.jit(transformation.update) for transformation in transformations]
    for gradient in gradients:
        (update, ours), (exact, expected) = (
            apply(gradient, state, parameters)
            for apply, state in zip(updates, (ours, expected), strict=True)
        )
        assert max(jax.tree.leaves(jax.tree.map(distance, exact, update))) < 1e-4
        assert distance(expected, ours) < 1e-5
