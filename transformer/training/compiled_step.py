"""The training step as compiled programs, for the shapes and the mesh of a run."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding

from transformer.config.types import Config
from transformer.data.batches.collation import Batch, abstract_batch
from transformer.data.batches.epoch_plan import Bucket
from transformer.distributed.mesh import BATCH, abstract_arrays, tree_shardings
from transformer.support.programs import Programs
from transformer.training.accumulation import update_kinds
from transformer.training.loss import LossSums
from transformer.training.memory import sort_by_memory
from transformer.training.module_norms import global_norm
from transformer.training.objectives import OBJECTIVES
from transformer.training.optimizer import count_updates
from transformer.training.state import TrainState
from transformer.training.train_step import Totals, apply_gradients, compute_gradients


class CompiledStep:
    """Maps (state, batches) to (state, metrics) over the devices of a mesh.

    Each batch shape is compiled once. The gradients and token counts of several batches are summed
    and divided once, so that the update equals an update by their union. Random numbers are a
    function of (config.seed, step, number of the batch), whatever the mesh. The seed and the
    learning rate are arguments of the programs, so that runs which differ only in these share JAX's
    compilation cache.
    """

    def __init__(
        self,
        config: Config,
        graph: nnx.GraphDef,
        optimizer: optax.GradientTransformation,
        schedule: optax.Schedule,
        mesh: Mesh,
        pieces: Sequence[str] = (),
    ):
        """`pieces` are the strings of the source's tokens, for objectives that mask tokens."""
        objective = OBJECTIVES[config.training.objective]
        self.config = config
        self.graph = graph
        self.optimizer = optax.with_extra_args_support(optimizer)
        self.mesh = mesh
        self.batch_sharding = NamedSharding(mesh, BATCH)
        self.seed = np.uint32(config.seed)
        self.inputs = objective.make_inputs(config.training, pieces)
        self.loss = objective.make_loss(config.training, mesh)

        self.learning_rate = jax.jit(lambda count: jnp.asarray(schedule(count), jnp.float32))
        self.update = jax.jit(self._update, donate_argnums=0)
        self.gradients = jax.jit(self._gradients)
        self.zeros = jax.jit(self._zeros)

        # Keeps the optimizer state among the arguments, so that the memory analysis of the program
        # counts it.
        self.accumulate = jax.jit(self._accumulate, donate_argnames="totals", keep_unused=True)
        self.apply_gradients = jax.jit(self._apply_gradients, donate_argnums=0)
        self.programs = Programs()

    def __call__(
        self,
        state: TrainState,
        batches: Sequence[Batch],
    ) -> tuple[TrainState, dict[str, Any]]:
        run = self.programs.run

        # The rate stays on the device, as an argument of the update.
        batches = [self.place(batch) for batch in batches]
        rate = run(self.learning_rate, count_updates(state.optimizer_state))
        if len(batches) == 1:
            return run(self.update, state, batches[0], self.seed, rate)

        # Accumulation: the sums over all batches come first, then one update.
        totals = run(self.zeros, state.parameters)
        for number, batch in enumerate(batches):
            totals = run(self.accumulate, state, batch, number, totals, self.seed)
        return run(self.apply_gradients, state, totals, rate)

    def compilations(
        self,
        state: TrainState,
        buckets: Sequence[Bucket],
    ) -> list[Callable[[], jax.stages.Compiled]]:
        """Returns functions that each compile a program for these buckets.

        The program that needs most memory comes first.
        """
        kinds = update_kinds(self.config.training)

        # Some phases of a run may accumulate and others not, so that a bucket needs both programs.
        calls = []
        for bucket in sort_by_memory(self.config, buckets):
            calls += [self.batch_call(state, bucket, kind) for kind in kinds]
        if True in kinds:
            calls += self.shared_calls(state)
        calls.append((self.learning_rate, count_updates(state.optimizer_state)))
        return [functools.partial(self.programs.compile, *call) for call in calls]

    def batch_call(self, state: TrainState, bucket: Bucket, is_accumulating: bool) -> tuple:
        """Returns (function, *abstract arguments) of the call for each batch."""
        batch = self.abstract_batch(bucket)
        if is_accumulating:
            return self.accumulate, state, batch, 0, self._abstract_totals(state), self.seed
        return self.update, state, batch, self.seed, self._abstract_rate(state)

    def shared_calls(self, state: TrainState) -> list[tuple]:
        """Returns the calls of an update by several batches that do not depend on the bucket."""
        totals = self._abstract_totals(state)
        rate = self._abstract_rate(state)
        return [(self.zeros, state.parameters), (self.apply_gradients, state, totals, rate)]

    def abstract_batch(self, bucket: Bucket) -> Batch:
        """Returns the shapes and shardings of the arrays of a batch from this bucket."""
        return abstract_batch(bucket, self.batch_sharding, self.config)

    def place(self, batch: Batch) -> Batch:
        """Returns the batch sharded over the mesh. The loader's batches already are."""
        return jax.device_put(batch, self.batch_sharding)

    def _abstract_totals(self, state: TrainState) -> Totals:
        totals = jax.eval_shape(self.zeros, state.parameters)
        return abstract_arrays(totals, tree_shardings(self.mesh, totals))

    def _abstract_rate(self, state: TrainState) -> jax.ShapeDtypeStruct:
        sharding = count_updates(state.optimizer_state).sharding
        return jax.ShapeDtypeStruct((), jnp.float32, sharding=sharding)

    def _update(self, state: TrainState, batch: Batch, seed: jax.Array, learning_rate: jax.Array):
        totals = self._gradients(state, batch, 0, seed)
        return self._apply_gradients(state, totals, learning_rate)

    def _zeros(self, parameters: dict) -> Totals:
        gradients = jax.tree.map(jnp.zeros_like, parameters)
        return self._constrain(Totals(gradients, LossSums.zeros()))

    def _accumulate(self, state, batch, number, totals, seed) -> Totals:
        return jax.tree.map(jnp.add, totals, self._gradients(state, batch, number, seed))

    def _gradients(
        self,
        state: TrainState,
        batch: Batch,
        number: int | jax.Array,
        seed: jax.Array,
    ) -> Totals:
        # Each batch of each step has its own key.
        step_key = jax.random.fold_in(jax.random.key(seed), state.step)
        key = jax.random.fold_in(step_key, number)

        # Masking has another key than dropout, which hashes `key` itself.
        batch = self.inputs(batch, jax.random.fold_in(key, 0))
        with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
            totals = compute_gradients(self.loss, self.graph, state.parameters, batch, key)
            return self._constrain(totals)

    def _apply_gradients(
        self,
        state: TrainState,
        totals: Totals,
        learning_rate: jax.Array,
    ) -> tuple[TrainState, dict[str, Any]]:
        norm = functools.partial(global_norm, self.mesh)
        with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
            state, metrics = apply_gradients(
                self.optimizer, self.config.training, state, totals, learning_rate, norm
            )
        return self._constrain(state), metrics

    def _constrain(self, tree):
        """Constrains each leaf to the sharding that the next program expects.

        Without the constraint, the compiler might choose another.
        """
        return jax.lax.with_sharding_constraint(tree, tree_shardings(self.mesh, tree))
