"""The state of training: parameters, optimizer state, step and, optionally, an average of the
parameters.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx, struct
from jax.sharding import Mesh

from transformer.config.types import Config
from transformer.distributed.mesh import abstract_arrays, tree_shardings
from transformer.training.objectives import OBJECTIVES


@struct.dataclass
class TrainState:
    """All that an update changes.

    A field has type Any, since JAX also builds trees of shapes and shardings.
    """

    step: Any  # number of updates, int32; skipped ones count
    skipped: Any  # number of updates skipped in a row, int32; latches at training.max_skipped
    parameters: Any  # nested dicts of float32 arrays
    optimizer_state: Any
    # exponential moving average of the parameters; None without training.ema_decay
    ema_parameters: Any

    @property
    def eval_parameters(self) -> dict:
        """The parameters for validation and decoding."""
        return self.parameters if self.ema_parameters is None else self.ema_parameters

    def moving_average(self, parameters: dict, decay: float) -> dict | None:
        """Returns the average after an update to `parameters`."""
        if self.ema_parameters is None:
            return None
        # A warm-up of the decay, so that the average soon forgets the initial parameters.
        decay = jnp.minimum(decay, (1.0 + self.step) / (10.0 + self.step))
        return optax.incremental_update(parameters, self.ema_parameters, 1.0 - decay)


def init_model(
    config: Config, source_vocab_size: int, target_vocab_size: int
) -> tuple[nnx.GraphDef, dict]:
    """Returns the structure of the model and its initial parameters for `config.seed`, which
    `nnx.merge` joins.
    """
    make_model = OBJECTIVES[config.training.objective].make_model
    model = make_model(
        config.model, source_vocab_size, target_vocab_size, rngs=nnx.Rngs(config.seed)
    )
    return nnx.graphdef(model), nnx.to_pure_dict(nnx.state(model, nnx.Param))


def abstract_init(
    config: Config, source_vocab_size: int, target_vocab_size: int
) -> tuple[nnx.GraphDef, dict]:
    """Returns the structure of the model and the shapes of its parameters, by tracing its
    construction once.
    """
    return jax.eval_shape(lambda: init_model(config, source_vocab_size, target_vocab_size))


class Initializer:
    """Makes the sharded initial state: of random parameters by `create`, or of donated ones by
    `start_from`.
    """

    def __init__(
        self,
        config: Config,
        optimizer: optax.GradientTransformation,
        mesh: Mesh,
        vocab_sizes: tuple[int, int],
    ):
        # traced once, for the shapes and for the values
        init = jax.jit(lambda: init_model(config, *vocab_sizes))
        self.graph, parameters = jax.eval_shape(init)

        def start_from(parameters: dict) -> TrainState:
            ema_parameters = parameters if config.training.ema_decay > 0 else None
            zero = jnp.zeros((), jnp.int32)
            return TrainState(zero, zero, parameters, optimizer.init(parameters), ema_parameters)

        shapes = jax.eval_shape(start_from, parameters)
        shardings = tree_shardings(mesh, shapes)
        self.create = jax.jit(lambda: start_from(init()[1]), out_shardings=shardings)
        self.start_from = jax.jit(start_from, out_shardings=shardings, donate_argnums=0)
        self.abstract_state = abstract_arrays(shapes, shardings)
