"""An update of a model (sections 5.3 and 5.4): the gradients of a batch, and the optimizer's step.

Both are pure functions. `compiled_step` compiles them for the shapes of a run and the devices of a
mesh.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Float, Key

from transformer.config.types import Config
from transformer.data.batches.collation import Batch
from transformer.training.loss import LossSums
from transformer.training.module_norms import module_norms
from transformer.training.objectives import Loss
from transformer.training.state import TrainState


class Totals(NamedTuple):
    """Sums over the target tokens of one or more batches."""

    gradients: dict  # of the summed loss, like the parameters
    sums: LossSums


def compute_gradients(
    loss: Loss,
    graph: nnx.GraphDef,
    parameters: dict,
    batch: Batch,
    key: Key[Array, ""],
) -> Totals:
    """Returns the gradients of the summed loss of a batch, and the sums that a step reports.

    Dropout uses `key`.
    """

    def loss_of(parameters):
        model = nnx.merge(graph, nnx.State(parameters))
        return loss(model, batch, nnx.Rngs(dropout=key))

    return Totals(*jax.grad(loss_of, has_aux=True)(parameters))


def apply_gradients(
    optimizer: optax.GradientTransformationExtraArgs,
    training_config: Config,
    state: TrainState,
    totals: Totals,
    learning_rate: Float[Array, ""],
    global_norm: Callable[[dict], jax.Array] = optax.tree.norm,
) -> tuple[TrainState, dict[str, Any]]:
    """Returns the state after an update by the mean gradient of all tokens, and the metrics.

    If the loss or a gradient is not finite, only the counts change.
    """
    # The mean over tokens. The norm comes before the division, which then fuses with the update.
    tokens = jnp.where(totals.sums.tokens == 0.0, 1.0, totals.sums.tokens)
    norm = global_norm(totals.gradients) / tokens
    gradients = jax.tree.map(lambda x: x / tokens, totals.gradients)

    updates, optimizer_state = optimizer.update(
        gradients, state.optimizer_state, state.parameters, learning_rate=learning_rate
    )
    parameters = optax.apply_updates(state.parameters, updates)
    ema_parameters = state.moving_average(parameters, training_config.ema_decay)

    # An update that is not finite is skipped: everything but the counts stays.
    is_finite = jnp.isfinite(totals.sums.loss) & jnp.isfinite(norm)
    before = (state.parameters, state.optimizer_state, state.ema_parameters)
    after = (parameters, optimizer_state, ema_parameters)
    after = jax.tree.map(lambda new, old: jnp.where(is_finite, new, old), after, before)
    # Latches at `max_skipped`: the host reads the count only at log steps.
    is_latched = state.skipped >= training_config.max_skipped
    skipped = jnp.where(is_latched, state.skipped, jnp.where(is_finite, 0, state.skipped + 1))

    metrics = {
        "sums": jax.tree.map(lambda x: jnp.where(is_finite, x, 0.0), totals.sums),
        "gradient_norm": norm,
        "learning_rate": learning_rate,
        "skipped": ~is_finite,
        "module_norms": module_norms(gradients, after[0]) if training_config.module_norms else {},
    }
    return TrainState(state.step + 1, skipped, *after), metrics
