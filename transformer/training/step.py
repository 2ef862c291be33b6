"""The training step: gradients of the loss, summed over one or more batches, and one update of the optimizer."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding

from transformer.config_types import Config
from transformer.data.batches.epoch_plan import Bucket
from transformer.distributed.sharding import BATCH, abstract_arrays, tree_shardings
from transformer.training.loss import LossSums
from transformer.training.memory import activation_bytes
from transformer.training.optimizer import count_updates
from transformer.training.projected_loss import ProjectedLoss
from transformer.training.state import TrainState

Batch = dict[str, Any]  # the arrays that the loader produces, by name: on devices, abstract, or whole in NumPy
Totals = tuple[dict, LossSums]  # sums over batches: the gradients of the loss, and what a step reports


def batch_loss(
    loss: ProjectedLoss, graph: nnx.GraphDef, parameters: dict, batch: Batch, rngs: nnx.Rngs | None
) -> tuple[jax.Array, LossSums]:
    """Returns the summed objective of a batch of the loader, and what a step reports."""
    model = nnx.merge(graph, nnx.State(parameters))
    inputs = {name: array for name, array in batch.items() if name != "target_output"}
    return loss(model.hidden(**inputs, rngs=rngs), model.output_table, batch["target_output"])


class TrainStep:
    """Maps (state, batches) to (state, metrics) over the devices of a mesh. Each batch shape is compiled once.

    The gradients and token counts of several batches are summed and divided once, so that the update is that of their
    union. Random numbers are a function of (config.seed, step, number of the batch), whatever the mesh.
    """

    def __init__(
        self,
        config: Config,
        graph: nnx.GraphDef,
        optimizer: optax.GradientTransformation,
        schedule: optax.Schedule,
        mesh: Mesh,
    ):
        self.config, self.graph = config, graph
        self.optimizer, self.schedule = optimizer, schedule
        self.mesh, self.batch_sharding = mesh, NamedSharding(mesh, BATCH)
        self.loss = ProjectedLoss.from_config(config.training, mesh)
        self.update = jax.jit(self._update, donate_argnums=0)
        self.gradients = jax.jit(self._gradients)
        self.zeros = jax.jit(self._zeros)
        self.accumulate = jax.jit(self._accumulate, donate_argnames="totals")
        self.apply_gradients = jax.jit(self._apply_gradients, donate_argnums=0)
        self._programs: dict[tuple, jax.stages.Compiled] = {}

    def __call__(self, state: TrainState, batches: Sequence[Batch]) -> tuple[TrainState, dict[str, Any]]:
        batches = [self.place(batch) for batch in batches]
        if len(batches) == 1:
            return self.executable(state, batches[0])(state, batches[0])
        totals = self.zeros(state.parameters)
        for number, batch in enumerate(batches):
            arguments = (state, batch, number, totals)
            totals = self.compile(self.accumulate, *arguments)(*arguments)
        return self.apply_gradients(state, totals)

    def is_new(self, batches: Sequence[Batch]) -> bool:
        """Tells whether an update from batches of these shapes has to be compiled first."""
        function = self.update if len(batches) == 1 else self.accumulate
        return any(_key(function, batch) not in self._programs for batch in batches)

    def compile(self, function, state: TrainState, batch: Batch, *others) -> jax.stages.Compiled:
        """Returns the function compiled for batches of this shape. Arrays may be abstract."""
        key = _key(function, batch)
        if key not in self._programs:
            self._programs[key] = function.lower(state, batch, *others).compile()
        return self._programs[key]

    def executable(self, state: TrainState, batch: Batch) -> jax.stages.Compiled:
        """Returns the compiled update from single batches of this shape. Arrays may be abstract."""
        return self.compile(self.update, state, batch)

    def largest(self, buckets: Sequence[Bucket]) -> Bucket:
        """Returns the shape that needs most memory."""

        def size(bucket: Bucket) -> int:
            return activation_bytes(self.config.model, bucket.rows, bucket.source_length, bucket.target_length)

        return max(buckets, key=size)

    def compile_largest(self, state: TrainState, buckets: Sequence[Bucket]) -> jax.stages.Compiled:
        """Compiles the step for the shape that needs most memory, so that a step that does not fit fails at once.

        With accumulation it is the program for each batch. (The one that applies the gradients has no activations.)
        """
        batch = self.abstract_batch(self.largest(buckets))
        if self.config.training.accumulation == 1:
            return self.executable(state, batch)
        return self.compile(self.accumulate, state, batch, 0, self.abstract_totals(state))

    def abstract_totals(self, state: TrainState) -> Totals:
        """Returns the shapes and shardings of the sums over batches."""
        totals = jax.eval_shape(self.zeros, state.parameters)
        return abstract_arrays(totals, tree_shardings(self.mesh, totals))

    def abstract_batch(self, bucket: Bucket) -> Batch:
        """Returns the shapes and shardings of the arrays of a batch from this bucket."""
        source, target = bucket.source_length, bucket.target_length
        sides = {"source": source, "target_input": target, "target_output": target}
        if self.config.batch.plan == "packed":
            for side, length in (("source", source), ("target", target)):
                sides |= {f"{side}_segments": length, f"{side}_positions": length}
        return {
            name: jax.ShapeDtypeStruct((bucket.rows, length), jnp.int32, sharding=self.batch_sharding)
            for name, length in sides.items()
        }

    def place(self, batch: Batch) -> Batch:
        """Returns the batch sharded over the mesh, as those of the loader already are."""
        return jax.device_put(batch, self.batch_sharding)

    def _update(self, state: TrainState, batch: Batch):
        return self._apply_gradients(state, self._gradients(state, batch, 0))

    def _zeros(self, parameters: dict) -> Totals:
        sums = LossSums(*[jnp.zeros(()) for _ in dataclasses.fields(LossSums)])
        return self._constrain((jax.tree.map(jnp.zeros_like, parameters), sums))

    def _accumulate(self, state: TrainState, batch: Batch, number: int | jax.Array, totals: Totals) -> Totals:
        return jax.tree.map(jnp.add, totals, self._gradients(state, batch, number))

    def _gradients(self, state: TrainState, batch: Batch, number: int | jax.Array) -> Totals:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(self.config.seed), state.step), number)
        rows = {name: jnp.repeat(array, self.loss.objective.passes, axis=0) for name, array in batch.items()}

        def loss(parameters):
            return batch_loss(self.loss, self.graph, parameters, rows, nnx.Rngs(dropout=key))

        with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
            return self._constrain(jax.grad(loss, has_aux=True)(state.parameters))

    def _apply_gradients(self, state: TrainState, totals: Totals) -> tuple[TrainState, dict[str, Any]]:
        """Returns the updated state. Where the loss or a gradient is not finite, only the counts change."""
        gradients, sums = totals
        gradients = jax.tree.map(lambda x: x / jnp.maximum(sums.tokens, 1.0), gradients)
        norm = optax.tree.norm(gradients)
        is_finite = jnp.isfinite(sums.loss) & jnp.isfinite(norm)
        updates, optimizer_state = self.optimizer.update(gradients, state.optimizer_state, state.parameters)
        parameters = optax.apply_updates(state.parameters, updates)
        ema_parameters = state.ema_parameters
        if ema_parameters is not None:
            rate = 1.0 - self.config.training.ema_decay
            ema_parameters = optax.incremental_update(parameters, ema_parameters, rate)
        before = (state.parameters, state.optimizer_state, state.ema_parameters)
        after = _select(is_finite, (parameters, optimizer_state, ema_parameters), before)
        # Latches at `max_skipped`: the host reads the count only at log steps.
        is_latched = state.skipped >= self.config.training.max_skipped
        skipped = jnp.where(is_latched, state.skipped, jnp.where(is_finite, 0, state.skipped + 1))
        metrics = {
            "sums": _select(is_finite, sums, jax.tree.map(jnp.zeros_like, sums)),
            "gradient_norm": norm,
            "learning_rate": jnp.asarray(self.schedule(count_updates(state.optimizer_state)), jnp.float32),
            "skipped": ~is_finite,
        }
        return self._constrain(TrainState(state.step + 1, skipped, *after)), metrics

    def _constrain(self, tree):
        """Constrains each leaf to the sharding that the next program expects of it; the compiler may choose another."""
        return jax.lax.with_sharding_constraint(tree, tree_shardings(self.mesh, tree))


def _key(function, batch: Batch) -> tuple:
    return function, *((name, array.shape) for name, array in sorted(batch.items()))


def _select(condition: jax.Array, tree, otherwise):
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), tree, otherwise)


def make_eval_step(config: Config, graph: nnx.GraphDef, mesh: Mesh) -> Callable[[dict, Batch], LossSums]:
    """Returns a jitted function that maps (parameters, batch) to the sums over the batch, without dropout."""
    loss = ProjectedLoss.from_config(config.training, mesh).without_r_drop()

    @jax.jit
    def sums(parameters: dict, batch: Batch) -> LossSums:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return batch_loss(loss, graph, parameters, batch, None)[1]

    return sums
