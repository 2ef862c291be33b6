"""Schedule-Free AdamW (Defazio et al. 2024): averages of parameters, instead of a rate that decays.

There are three sequences of parameters. Training computes gradients at y, an optimizer without
momentum moves z, and x, the weighted mean of all z, is for validation and decoding:

    y = (1 - beta1) z + beta1 x
    z' = z + step(gradient at y)
    x' = (1 - c) x + c z'    where c = rate^2 / (sum of rate^2 over all updates)

The parameters in training are y, and the optimizer's state has z. These follow the authors' code,
which `optax.contrib.schedule_free` does not in one point: it takes the rate in c from the update
after this one.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from transformer.config.types import Config


@struct.dataclass
class ScheduleFreeState:
    """The state of the optimizer that moves z, with z and the weights of its mean."""

    inner: Any
    z: Any  # like the parameters
    max_rate: Any  # largest learning rate so far, float32
    weight_sum: Any  # of the mean, float32
    beta1: float = struct.field(pytree_node=False)

    def averaged_parameters(self, parameters: dict) -> dict:
        """Returns x, for the parameters y."""
        return _extrapolate(parameters, self.z, 1 / self.beta1 - 1)


@jax.jit
def _extrapolate(y: dict, z: dict, factor: jax.Array) -> dict:
    # Solves y = (1 - beta1) z + beta1 x. Parameters that never moved stay exactly equal.
    return jax.tree.map(lambda y, z: y + factor * (y - z), y, z)


def average_iterates(
    optimizer_config: Config,
    optimizer: optax.GradientTransformation,
    rate_of: Callable[[optax.OptState], jax.Array],
) -> optax.GradientTransformation:
    """Returns Schedule-Free training with an optimizer that has no momentum.

    `rate_of` maps the optimizer's state to the learning rate of its next update.
    """
    beta1 = optimizer_config.beta1

    def init(parameters):
        zero = jnp.zeros((), jnp.float32)
        return ScheduleFreeState(optimizer.init(parameters), parameters, zero, zero, beta1)

    def update(updates, state, params=None):
        max_rate = jnp.maximum(state.max_rate, rate_of(state.inner))
        weight = max_rate**2
        weight_sum = state.weight_sum + weight
        c = jnp.where(weight > 0, weight / weight_sum, 0.0)

        # The equations above, solved for the change of y.
        steps, inner = optimizer.update(updates, state.inner, params)
        changes = jax.tree.map(
            lambda step, y, z: c * (z - y) + (1 - beta1 * (1 - c)) * step, steps, params, state.z
        )
        z = optax.apply_updates(state.z, steps)
        return changes, ScheduleFreeState(inner, z, max_rate, weight_sum, beta1)

    return optax.GradientTransformation(init, update)


def adam_without_momentum(
    optimizer_config: Config, schedule: optax.Schedule
) -> optax.GradientTransformation:
    """Returns Adam with beta1 = 0, without memory for a first moment."""
    scale = optax.scale_by_rms(
        decay=optimizer_config.beta2,
        eps=optimizer_config.epsilon,
        eps_in_sqrt=False,
        bias_correction=True,
    )
    return optax.chain(scale, optax.scale_by_learning_rate(schedule))
