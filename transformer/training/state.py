"""What training changes: parameters, optimizer state, step and, if wanted, the average of parameters."""

import jax
import jax.numpy as jnp
import ml_collections
import optax
from flax import nnx, struct
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from transformer.model.transformer import Transformer
from transformer.training.sharding import tree_shardings

Config = ml_collections.ConfigDict | ml_collections.FrozenConfigDict


@struct.dataclass
class TrainState:
    step: jax.Array  # updates done, int32
    parameters: dict
    optimizer_state: optax.OptState
    average: dict | None  # exponential moving average of the parameters, with training.ema_decay

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


def init_state(
    config: Config, optimizer: optax.GradientTransformation, mesh: Mesh, vocab_sizes: tuple[int, int]
) -> TrainState:
    """The state before the first step, each leaf born where it will live on the mesh."""

    def create() -> TrainState:
        parameters = init_parameters(config, *vocab_sizes)
        average = parameters if config.training.ema_decay > 0 else None
        return TrainState(jnp.zeros((), jnp.int32), parameters, optimizer.init(parameters), average)

    return jax.jit(create, out_shardings=state_shardings(mesh, jax.eval_shape(create)))()


def state_shardings(mesh: Mesh, state: TrainState) -> TrainState:
    return tree_shardings(mesh, state).replace(step=NamedSharding(mesh, P()))
