"""Muon over stacks of matrices, compared with Optax's, which takes one matrix at a time."""

import jax
import optax
import optax.contrib
import pytest

from tests.training.tiny import VOCAB_SIZE, distance, tiny_config
from transformer.training.optimizer import make_optimizer
from transformer.training.state import init_model

RATE = optax.constant_schedule(0.1)


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
        muon_weight_dimension_numbers=lambda tree: jax.tree_util.tree_map_with_path(dimensions, tree),
        consistent_rms=0.2,
    )


@pytest.mark.parametrize("epsilon", [1e-9, 0.5])
def test_updates_and_state_are_those_of_optax(epsilon):
    config = tiny_config(model__share_embeddings="none", optimizer__name="muon", optimizer__epsilon=epsilon)
    parameters = init_model(config, VOCAB_SIZE, VOCAB_SIZE)[1]
    transformations = make_optimizer(config.optimizer, RATE), by_optax(config.optimizer)
    # Checkpoints of either restore into the other.
    ours, expected = (transformation.init(parameters) for transformation in transformations)
    assert jax.tree.structure(ours) == jax.tree.structure(expected)
    for seed in range(2):
        keys = jax.random.split(jax.random.key(seed), len(jax.tree.leaves(parameters)))
        keys = jax.tree.unflatten(jax.tree.structure(parameters), list(keys))
        gradients = jax.tree.map(lambda x, key: jax.random.normal(key, x.shape), parameters, keys)
        (update, ours), (exact, expected) = (
            jax.jit(transformation.update)(gradients, state, parameters)
            for transformation, state in zip(transformations, (ours, expected), strict=True)
        )
        assert max(jax.tree.leaves(jax.tree.map(distance, exact, update))) < 1e-4
        assert distance(expected, ours) < 1e-5
