"""The training step: gradients of the loss, summed over one or more batches, and one update of the optimizer."""

import functools
import itertools
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
from transformer.training.accumulation import kinds
from transformer.training.loss import LossSums
from transformer.training.memory import by_memory
from transformer.training.module_norms import global_norm, module_norms
from transformer.training.objectives import OBJECTIVES
from transformer.training.optimizer import count_updates
from transformer.training.state import TrainState

Totals = tuple[dict, LossSums]  # sums over batches: the gradients of the loss, and what a step reports


class TrainStep:
    """Maps (state, batches) to (state, metrics) over the devices of a mesh. Each batch shape is compiled once.

    The gradients and token counts of several batches are summed and divided once, so that the update is that of their
    union. Random numbers are a function of (config.seed, step, number of the batch), whatever the mesh. The seed and
    the learning rate are arguments of the programs, so that runs which differ only in these share JAX's cache.
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
        """`pieces`: the strings of the source's tokens, which the objectives that mask tokens need."""
        objective = OBJECTIVES[config.training.objective]
        self.config, self.graph, self.inputs = config, graph, objective.make_inputs(config.training, pieces)
        self.optimizer, self.seed = optax.with_extra_args_support(optimizer), np.uint32(config.seed)
        self.mesh, self.batch_sharding = mesh, NamedSharding(mesh, BATCH)
        self.loss = objective.make_loss(config.training, mesh)
        self.learning_rate = jax.jit(lambda count: jnp.asarray(schedule(count), jnp.float32))
        self.update = jax.jit(self._update, donate_argnums=0)
        self.gradients = jax.jit(self._gradients)
        self.zeros = jax.jit(self._zeros)
        # Keeps the optimizer state among the arguments, so that the memory analysis of the program counts it.
        self.accumulate = jax.jit(self._accumulate, donate_argnames="totals", keep_unused=True)
        self.apply_gradients = jax.jit(self._apply_gradients, donate_argnums=0)
        self.programs = Programs()

    def __call__(self, state: TrainState, batches: Sequence[Batch]) -> tuple[TrainState, dict[str, Any]]:
        batches = [self.place(batch) for batch in batches]
        rate = self.programs.run(self.learning_rate, count_updates(state.optimizer_state))
        if len(batches) == 1:
            return self.programs.run(self.update, state, batches[0], self.seed, rate)
        totals = self.programs.run(self.zeros, state.parameters)
        for number, batch in enumerate(batches):
            totals = self.programs.run(self.accumulate, state, batch, number, totals, self.seed)
        return self.programs.run(self.apply_gradients, state, totals, rate)

    def compilations(self, state: TrainState, buckets: Sequence[Bucket]) -> list[Callable[[], jax.stages.Compiled]]:
        """Returns functions that each compile a program for these buckets, the one that needs most memory first."""
        pairs = itertools.product(by_memory(self.config, buckets), kinds(self.config.training))
        of_batches, once = zip(*(self.calls(state, *pair) for pair in pairs), strict=True)
        # Only updates from several batches, the first kind if a run has both, have programs that all buckets share.
        calls = [*of_batches, *once[0], (self.learning_rate, count_updates(state.optimizer_state))]
        return [functools.partial(self.programs.compile, *call) for call in calls]

    def calls(self, state: TrainState, bucket: Bucket, num_batches: int) -> tuple[tuple, list[tuple]]:
        """Returns (function, *abstract arguments) of the call for each batch, and of the calls for each update."""
        batch, count = self.abstract_batch(bucket), count_updates(state.optimizer_state)
        rate = jax.ShapeDtypeStruct((), jnp.float32, sharding=count.sharding)
        if num_batches == 1:
            return (self.update, state, batch, self.seed, rate), []
        totals = jax.eval_shape(self.zeros, state.parameters)
        totals = abstract_arrays(totals, tree_shardings(self.mesh, totals))
        once = [(self.zeros, state.parameters), (self.apply_gradients, state, totals, rate)]
        return (self.accumulate, state, batch, 0, totals, self.seed), once

    def abstract_batch(self, bucket: Bucket) -> Batch:
        """Returns the shapes and shardings of the arrays of a batch from this bucket."""
        return abstract_batch(bucket, self.batch_sharding, self.config)

    def place(self, batch: Batch) -> Batch:
        """Returns the batch sharded over the mesh, as the loader's already are."""
        return jax.device_put(batch, self.batch_sharding)

    def _update(self, state: TrainState, batch: Batch, seed: jax.Array, learning_rate: jax.Array):
        return self._apply_gradients(state, self._gradients(state, batch, 0, seed), learning_rate)

    def _zeros(self, parameters: dict) -> Totals:
        return self._constrain((jax.tree.map(jnp.zeros_like, parameters), LossSums.zeros()))

    def _accumulate(self, state: TrainState, batch: Batch, number: jax.Array, totals: Totals, seed: jax.Array):
        return jax.tree.map(jnp.add, totals, self._gradients(state, batch, number, seed))

    def _gradients(self, state: TrainState, batch: Batch, number: int | jax.Array, seed: jax.Array) -> Totals:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), state.step), number)
        batch = self.inputs(batch, jax.random.fold_in(key, 0))  # dropout hashes `key` itself

        def loss(parameters):
            return self.loss(nnx.merge(self.graph, nnx.State(parameters)), batch, nnx.Rngs(dropout=key))

        with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
            return self._constrain(jax.grad(loss, has_aux=True)(state.parameters))

    def _apply_gradients(
        self, state: TrainState, totals: Totals, learning_rate: jax.Array
    ) -> tuple[TrainState, dict[str, Any]]:
        """Returns the updated state. Where the loss or a gradient is not finite, only the counts change."""
        gradients, sums = totals
        tokens = jnp.where(sums.tokens == 0.0, 1.0, sums.tokens)
        # Before the division, which is then part of the update's kernels.
        norm = global_norm(self.mesh, gradients) / tokens
        gradients = jax.tree.map(lambda x: x / tokens, gradients)
        is_finite = jnp.isfinite(sums.loss) & jnp.isfinite(norm)
        with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
            updates, optimizer_state = self.optimizer.update(
                gradients, state.optimizer_state, state.parameters, learning_rate=learning_rate
            )
        parameters = optax.apply_updates(state.parameters, updates)
        ema_parameters = state.ema_parameters
        if ema_parameters is not None:
            # A warm-up of the decay, so that the average soon forgets the initial parameters.
            decay = jnp.minimum(self.config.training.ema_decay, (1.0 + state.step) / (10.0 + state.step))
            ema_parameters = optax.incremental_update(parameters, ema_parameters, 1.0 - decay)
        before = (state.parameters, state.optimizer_state, state.ema_parameters)
        after = (parameters, optimizer_state, ema_parameters)
        after = jax.tree.map(lambda new, old: jnp.where(is_finite, new, old), after, before)
        # Latches at `max_skipped`: the host reads the count only at log steps.
        is_latched = state.skipped >= self.config.training.max_skipped
        skipped = jnp.where(is_latched, state.skipped, jnp.where(is_finite, 0, state.skipped + 1))
        metrics = {
            "sums": jax.tree.map(lambda x: jnp.where(is_finite, x, 0.0), sums),
            "gradient_norm": norm,
            "learning_rate": learning_rate,
            "skipped": ~is_finite,
            "module_norms": module_norms(gradients, after[0]) if self.config.training.module_norms else {},
        }
        return self._constrain(TrainState(state.step + 1, skipped, *after)), metrics

    def _constrain(self, tree):
        """Constrains each leaf to the sharding that the next program expects; the compiler might choose another."""
        return jax.lax.with_sharding_constraint(tree, tree_shardings(self.mesh, tree))
