"""The state of training: parameters, optimizer state, step and perhaps averaged parameters."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx, struct
from jax.sharding import Mesh

from transformer.config.types import Config
from transformer.distributed.mesh import abstract_arrays, tree_shardings
from transformer.training.objectives import OBJECTIVES
from transformer.training.parameterization import initial_values


@struct.dataclass
class TrainState:
    """Everything that an update changes.

    The type of a field is Any, because JAX also builds trees of shapes and shardings.
    """

    step: Any  # number of updates, int32; skipped ones count
    skipped: Any  # number of updates skipped in a row, int32; latches at training.max_skipped
    parameters: Any  # nested dicts of float32 arrays
    optimizer_state: Any
    # exponential moving average of the parameters; None without training.ema_decay
    ema_parameters: Any

    @property
    def averaged_parameters(self) -> dict | None:
        """The average of training.ema_decay, or of an optimizer that averages; otherwise None."""
        if hasattr(self.optimizer_state, "averaged_parameters"):
            return self.optimizer_state.averaged_parameters(self.parameters)
        return self.ema_parameters

    @property
    def eval_parameters(self) -> dict:
        """The parameters for validation and decoding."""
        averaged = self.averaged_parameters
        return self.parameters if averaged is None else averaged

    def moving_average(self, parameters: dict, decay: float) -> dict | None:
        """Returns the average after an update to `parameters`."""
        if self.ema_parameters is None:
            return None
        # A warm-up of the decay, so that the average soon forgets the initial parameters.
        warm = jnp.minimum(decay, (1.0 + self.step) / (10.0 + self.step))
        return optax.incremental_update(parameters, self.ema_parameters, 1.0 - warm)


def init_model(
    config: Config,
    source_vocab_size: int,
    target_vocab_size: int,
) -> tuple[nnx.GraphDef, dict]:
    """Returns the structure of the model, and its initial parameters for `config.seed`.

    `nnx.merge` joins the two.
    """
    make_model = OBJECTIVES[config.training.objective].make_model
    rngs = nnx.Rngs(config.seed)
    model = make_model(config.model, source_vocab_size, target_vocab_size, rngs=rngs)
    parameters = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    return nnx.graphdef(model), initial_values(config, parameters)


def abstract_init(
    config: Config,
    source_vocab_size: int,
    target_vocab_size: int,
) -> tuple[nnx.GraphDef, dict]:
    """Returns the structure of the model and the shapes of its parameters, without values."""
    return jax.eval_shape(lambda: init_model(config, source_vocab_size, target_vocab_size))


class Initializer:
    """The initial state, sharded over a mesh.

    `create` makes it from random parameters, and `start_from` from parameters that it donates.
    """

    def __init__(
        self,
        config: Config,
        optimizer: optax.GradientTransformation,
        mesh: Mesh,
        vocab_sizes: tuple[int, int],
    ):
        # Traced once, for the shapes and for the values.
        init = jax.jit(lambda: init_model(config, *vocab_sizes))
        self.graph, parameters = jax.eval_shape(init)

        def start_from(parameters):
            ema_parameters = parameters if config.training.ema_decay > 0 else None
            zero = jnp.zeros((), jnp.int32)
            return TrainState(zero, zero, parameters, optimizer.init(parameters), ema_parameters)

        # The programs return the state in shards: one device may have no room for all of it.
        shapes = jax.eval_shape(start_from, parameters)
        shardings = tree_shardings(mesh, shapes)
        self.create = jax.jit(lambda: start_from(init()[1]), out_shardings=shardings)
        self.start_from = jax.jit(start_from, out_shardings=shardings, donate_argnums=0)
        self.abstract_state = abstract_arrays(shapes, shardings)
