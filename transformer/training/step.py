"""One update: gradients of the summed loss over one or more batches, divided once by all their tokens."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding

from transformer.config_types import Config
from transformer.data.batches.buckets import Bucket
from transformer.distributed.sharding import BATCH, abstract_arrays, place_rows, tree_shardings
from transformer.training.loss import LossSums, cross_entropy, symmetric_kl
from transformer.training.optimizer import count_updates
from transformer.training.state import TrainState

Batch = dict[str, Any]  # arrays as the loader names them: NumPy's, on devices, or abstract


def forward(graph: nnx.GraphDef, parameters: dict, batch: Batch, rngs: nnx.Rngs | None) -> jax.Array:
    """Logits (B, T, V) of a batch as the loader makes it."""
    inputs = {name: array for name, array in batch.items() if name != "target_output"}
    return merge(graph, parameters)(**inputs, rngs=rngs)


def merge(graph: nnx.GraphDef, parameters: dict):
    """The model with these parameters."""
    return nnx.merge(graph, nnx.State(parameters))


class TrainStep:
    """(state, batches) -> (state, metrics), compiled once a batch shape, over the devices of a mesh.

    The random numbers of a part are a function of (config.seed, step, part), not of devices. With several batches their
    gradients and token counts are summed and divided once, so the update is that of their union.
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
        self.whole = jax.jit(self._whole, donate_argnums=0)
        self.gradients = jax.jit(self._gradients)
        self.add = jax.jit(self._add, donate_argnames="total")
        self.apply = jax.jit(self._apply, donate_argnums=0)
        self.compiled: dict[tuple, jax.stages.Compiled] = {}

    def __call__(self, state: TrainState, batches: Sequence[Batch]) -> tuple[TrainState, dict[str, Any]]:
        batches = [self.place(batch) for batch in batches]
        if len(batches) == 1:
            return self._run(self.whole, state, batches[0])
        total = self._run(self.gradients, state, batches[0], 0)
        for part, batch in enumerate(batches[1:], start=1):
            total = self._run(self.add, state, batch, part, total)
        return self.apply(state, total)

    def executable(self, state: TrainState, batch: Batch) -> jax.stages.Compiled:
        """The compiled update for single batches of this shape. Arrays may be abstract."""
        return self._program(self.whole, state, batch)

    def is_new(self, batches: Sequence[Batch]) -> bool:
        """Whether an update from batches of these shapes has something to compile first."""
        several = [self.gradients, *[self.add] * (len(batches) - 1)]
        functions = [self.whole] if len(batches) == 1 else several
        return any(_key(*each) not in self.compiled for each in zip(functions, batches, strict=True))

    def compile_largest(self, state: TrainState, buckets: Sequence[Bucket]) -> None:
        """Compiles for the largest batch there will be: what does not fit in memory fails now, not hours later."""
        batch = self.abstract_batch(max(buckets, key=lambda bucket: bucket.positions))
        if self.config.training.accumulation == 1:
            self.executable(state, batch)
        else:
            self._program(self.gradients, state, batch, 0)
            self._program(self.add, state, batch, 1, self._abstract_total(state, batch))

    def abstract_batch(self, bucket: Bucket) -> Batch:
        """Shapes and places of the arrays of a batch from this bucket."""
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
        return place_rows(batch, self.mesh)

    def _whole(self, state: TrainState, batch: Batch):
        return self._apply(state, self._gradients(state, batch, 0))

    def _add(self, state: TrainState, batch: Batch, part: int | jax.Array, total: tuple[dict, LossSums]):
        return jax.tree.map(jnp.add, total, self._gradients(state, batch, part))

    def _gradients(self, state: TrainState, batch: Batch, part: int | jax.Array) -> tuple[dict, LossSums]:
        """LossSums over the batch: of the loss's gradients, and of what is reported."""
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(self.config.seed), state.step), part)
        training = self.config.training
        passes = 1 if training.r_drop == 0.0 else 2
        rows = {name: jnp.repeat(array, passes, axis=0) for name, array in batch.items()}
        targets = rows["target_output"]

        def loss(parameters):
            logits = forward(self.graph, parameters, rows, nnx.Rngs(dropout=key))
            sums = cross_entropy(logits, targets, training.label_smoothing, training.label_smoothing_support)
            sums = jax.tree.map(lambda total: total / passes, sums)  # each sentence counts once
            if passes == 1:
                return sums.loss, sums
            # The paper adds both passes' losses up (equation 3); this is their mean, so half of everything.
            return sums.loss + training.r_drop * symmetric_kl(logits, targets) / 2, sums

        with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
            return self._placed(jax.grad(loss, has_aux=True)(state.parameters))

    def _apply(self, state: TrainState, total: tuple[dict, LossSums]) -> tuple[TrainState, dict[str, Any]]:
        """The state after the update; where loss or gradient is not finite, as it was but for its counts."""
        gradients, sums = total
        gradients = jax.tree.map(lambda x: x / jnp.maximum(sums.tokens, 1.0), gradients)
        norm = optax.tree.norm(gradients)
        is_finite = jnp.isfinite(sums.loss) & jnp.isfinite(norm)
        updates, optimizer_state = self.optimizer.update(gradients, state.optimizer_state, state.parameters)
        parameters = optax.apply_updates(state.parameters, updates)
        average = state.average
        if average is not None:
            average = optax.incremental_update(parameters, average, 1.0 - self.config.training.ema_decay)
        before = (state.parameters, state.optimizer_state, state.average)
        kept = _select(is_finite, (parameters, optimizer_state, average), before)
        # Once it is too many it stays so until the loop looks, which is not at every step.
        is_too_many = state.skipped >= self.config.training.max_skipped
        skipped = jnp.where(is_too_many, state.skipped, jnp.where(is_finite, 0, state.skipped + 1))
        metrics = {
            "sums": _select(is_finite, sums, jax.tree.map(jnp.zeros_like, sums)),
            "gradient_norm": norm,
            "learning_rate": jnp.asarray(self.schedule(count_updates(state.optimizer_state)), jnp.float32),
            "skipped": ~is_finite,
        }
        state = TrainState(state.step + 1, skipped, *kept)
        return self._placed(state), metrics

    def _placed(self, tree):
        """Left alone, the compiler may split vectors, and the next program would find its arguments misplaced."""
        return jax.lax.with_sharding_constraint(tree, tree_shardings(self.mesh, tree))

    def _abstract_total(self, state: TrainState, batch: Batch) -> tuple[dict, LossSums]:
        total = jax.eval_shape(self.gradients, state, batch, 0)
        return abstract_arrays(total, tree_shardings(self.mesh, total))

    def _run(self, function, *arguments):
        return self._program(function, *arguments)(*arguments)

    def _program(self, function, state: TrainState, batch: Batch, *others) -> jax.stages.Compiled:
        """The function compiled for batches of this shape; what else it takes has always the same one."""
        key = _key(function, batch)
        if key not in self.compiled:
            self.compiled[key] = function.lower(state, batch, *others).compile()
        return self.compiled[key]


def _key(function, batch: Batch) -> tuple:
    return function, *((name, array.shape) for name, array in sorted(batch.items()))


def _select(condition: jax.Array, tree, otherwise):
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), tree, otherwise)


def make_eval_step(config: Config, graph: nnx.GraphDef, mesh: Mesh) -> Callable[[dict, Batch], LossSums]:
    """(parameters, batch) -> sums over the batch, without dropout."""
    training = config.training

    @jax.jit
    def sums(parameters: dict, batch: Batch) -> LossSums:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            logits = forward(graph, parameters, batch, None)
        return cross_entropy(logits, batch["target_output"], training.label_smoothing, training.label_smoothing_support)

    return lambda parameters, batch: sums(parameters, place_rows(batch, mesh))
