"""What training changes: parameters, optimizer state, step and, if wanted, the average of parameters."""

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
    """What an update changes. JAX also makes trees of this kind whose leaves are shapes, shardings or marks."""

    step: Any  # updates done or skipped, int32
    skipped: Any  # the last so many were skipped, not being finite; stays at training.max_skipped, int32
    parameters: Any  # nested dicts of float32 arrays
    optimizer_state: Any  # as Optax makes it
    average: Any  # exponential moving average of the parameters, with training.ema_decay; else None

    @property
    def evaluated(self) -> dict:
        """The parameters to validate and decode with."""
        return self.parameters if self.average is None else self.average


def abstract_model(config: Config, source_vocab_size: int, target_vocab_size: int) -> nnx.GraphDef:
    """The model's structure, without its parameters: what `nnx.merge` puts parameters into."""
    graph, _ = nnx.split(
        nnx.eval_shape(lambda: Transformer(config.model, source_vocab_size, target_vocab_size, rngs=nnx.Rngs(0)))
    )
    return graph


def init_parameters(config: Config, source_vocab_size: int, target_vocab_size: int) -> dict:
    """Parameters as drawn for `config.seed`: a nested dict of float32 arrays."""
    model = Transformer(config.model, source_vocab_size, target_vocab_size, rngs=nnx.Rngs(config.seed))
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))


class Initializer:
    """Makes the state before the first step, each array born where it will live on the mesh."""

    def __init__(
        self, config: Config, optimizer: optax.GradientTransformation, mesh: Mesh, vocab_sizes: tuple[int, int]
    ):
        def create() -> TrainState:
            parameters = init_parameters(config, *vocab_sizes)
            average = parameters if config.training.ema_decay > 0 else None
            zero = jnp.zeros((), jnp.int32)
            return TrainState(zero, zero, parameters, optimizer.init(parameters), average)

        shapes = jax.eval_shape(create)
        shardings = tree_shardings(mesh, shapes)
        self.create = jax.jit(create, out_shardings=shardings)
        self.abstract_state = abstract_arrays(shapes, shardings)

    def __call__(self) -> TrainState:
        return self.create()


def with_embeddings(state: TrainState, rows: Mapping[str, PretrainedRows]) -> TrainState:
    """The state with those rows of the embedding tables of "encoder" and "decoder" replaced.

    A table that both share is filled from both, the decoder's last.
    """
    for stack, pretrained in rows.items():
        # One table for both languages stands under the first stack that holds it.
        owner = stack if "embedding" in state.parameters[stack] else "decoder"
        variable = state.parameters[owner]["embedding"]
        old = variable["table"]
        table = jnp.where(pretrained.found[:, None], pretrained.table, old)
        variable["table"] = jax.device_put(table, old.sharding)
    return state if state.average is None else state.replace(average=jax.tree.map(jnp.copy, state.parameters))
