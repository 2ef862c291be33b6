"""The state of training: parameters, optimizer state, step and, optionally, an average of the parameters."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx, struct
from jax.sharding import Mesh

from transformer.config_types import Config
from transformer.distributed.sharding import abstract_arrays, tree_shardings
from transformer.model.transformer import Transformer
from transformer.training.pretrained_embeddings import PretrainedRows


@struct.dataclass
class TrainState:
    """All that an update changes. A field has type Any, since JAX also builds trees of shapes and shardings."""

    step: Any  # number of updates, int32; skipped ones count
    skipped: Any  # number of updates skipped in a row, int32; latches at training.max_skipped
    parameters: Any  # nested dicts of float32 arrays
    optimizer_state: Any
    ema_parameters: Any  # exponential moving average of the parameters; None without training.ema_decay

    @property
    def eval_parameters(self) -> dict:
        """The parameters for validation and decoding."""
        return self.parameters if self.ema_parameters is None else self.ema_parameters


def abstract_model(config: Config, source_vocab_size: int, target_vocab_size: int) -> nnx.GraphDef:
    """Returns the structure of the model, to be merged with its parameters by `nnx.merge`."""
    graph, _ = nnx.split(
        nnx.eval_shape(lambda: Transformer(config.model, source_vocab_size, target_vocab_size, rngs=nnx.Rngs(0)))
    )
    return graph


def init_parameters(config: Config, source_vocab_size: int, target_vocab_size: int) -> dict:
    """Returns the initial parameters for `config.seed`: a nested dict of float32 arrays."""
    model = Transformer(config.model, source_vocab_size, target_vocab_size, rngs=nnx.Rngs(config.seed))
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))


class Initializer:
    """Creates the initial state, each array with its sharding over the mesh."""

    def __init__(
        self, config: Config, optimizer: optax.GradientTransformation, mesh: Mesh, vocab_sizes: tuple[int, int]
    ):
        def create() -> TrainState:
            parameters = init_parameters(config, *vocab_sizes)
            ema_parameters = parameters if config.training.ema_decay > 0 else None
            zero = jnp.zeros((), jnp.int32)
            return TrainState(zero, zero, parameters, optimizer.init(parameters), ema_parameters)

        shapes = jax.eval_shape(create)
        shardings = tree_shardings(mesh, shapes)
        self.create = jax.jit(create, out_shardings=shardings)
        self.abstract_state = abstract_arrays(shapes, shardings)

    def __call__(self) -> TrainState:
        return self.create()


def with_embeddings(state: TrainState, rows: Mapping[str, PretrainedRows]) -> TrainState:
    """Returns the state with pretrained rows in the embedding tables of "encoder" and "decoder".

    Both write to a shared table, the decoder last.
    """
    for stack, pretrained in rows.items():
        # A shared table is a parameter of the first stack in alphabetical order: the decoder.
        owner = stack if "embedding" in state.parameters[stack] else "decoder"
        variable = state.parameters[owner]["embedding"]
        old = variable["table"]
        table = jnp.where(pretrained.found[:, None], pretrained.table, old)
        variable["table"] = jax.device_put(table, old.sharding)
    if state.ema_parameters is None:
        return state
    return state.replace(ema_parameters=jax.tree.map(jnp.copy, state.parameters))
