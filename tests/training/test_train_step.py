"""The two functions of a step, on a model of one parameter with updates worked out by hand."""

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

from configs import base
from transformer.training.loss import LossSums
from transformer.training.state import TrainState
from transformer.training.train_step import Totals, apply_gradients, compute_gradients

RATE = jnp.float32(0.5)
TRAINING = base.get_config().training


class Line(nnx.Module):
    """y = w x."""

    def __init__(self):
        self.w = nnx.Param(jnp.float32(3.0))


def squared_error(model: Line, batch: dict, rngs: nnx.Rngs) -> tuple[jax.Array, LossSums]:
    """Returns the sum of (w x - y)^2."""
    loss = jnp.sum((model.w[...] * batch["x"] - batch["y"]) ** 2)
    return loss, LossSums(loss, loss, jnp.float32(0.0), jnp.float32(len(batch["x"])))


def descend() -> optax.GradientTransformationExtraArgs:
    def update(gradients, state, parameters=None, *, learning_rate):
        return jax.tree.map(lambda gradient: -learning_rate * gradient, gradients), state

    return optax.GradientTransformationExtraArgs(lambda parameters: (), update)


def totals_of(x: list[float], y: list[float]) -> Totals:
    graph, state = nnx.split(Line())
    batch = {"x": jnp.array(x), "y": jnp.array(y)}
    return compute_gradients(
        squared_error, graph, nnx.to_pure_dict(state), batch, jax.random.key(0)
    )


def updated(totals: Totals, skipped: int = 0) -> tuple[TrainState, dict]:
    state = TrainState(jnp.int32(4), jnp.int32(skipped), {"w": jnp.float32(3.0)}, (), None)
    return apply_gradients(descend(), TRAINING, state, totals, RATE)


def test_the_gradient_is_that_of_the_sum():
    totals = totals_of([1.0, 2.0], [1.0, 2.0])
    assert totals.gradients == {"w": 2 * (3 - 1) * 1 + 2 * (6 - 2) * 2}
    assert totals.sums.loss == 4 + 16
    assert totals.sums.tokens == 2


def test_an_update_takes_the_mean_gradient_of_all_tokens():
    first, second = totals_of([1.0], [1.0]), totals_of([2.0], [2.0])
    both = jax.tree.map(jnp.add, first, second)
    state, metrics = updated(both)
    assert state.parameters == {"w": 3 - 0.5 * (4 + 16) / 2}
    assert state.step == 5
    assert metrics["gradient_norm"] == 10


@pytest.mark.parametrize("skipped", [0, TRAINING.max_skipped])
def test_an_update_that_is_not_finite_changes_only_the_counts(skipped):
    state, metrics = updated(totals_of([float("inf")], [1.0]), skipped)
    assert state.parameters == {"w": 3.0}
    assert (state.step, state.skipped) == (5, min(skipped + 1, TRAINING.max_skipped))
    assert metrics["skipped"]
    assert metrics["sums"] == LossSums.zeros()
