"""The training steps of several trials as one program, with the trials as an axis of every array.

Each trial runs the loop of `transformer.train` in a thread. When all loops have requested a step,
one of the threads takes it for all of them. Each trial has separate data, workdir, validation and
checkpoints.
"""

import functools
import operator
import threading
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from transformer.config.keys import flatten
from transformer.config.types import with_changes
from transformer.data.batches.collation import Batch
from transformer.data.batches.epoch_plan import Bucket
from transformer.run.preparation import Run
from transformer.support.programs import Programs
from transformer.training.compiled_step import CompiledStep
from transformer.training.objectives import OBJECTIVES
from transformer.training.optimizer import count_updates
from transformer.training.parameterization import make_run_optimizer
from transformer.training.state import TrainState

# The keys in which trials may differ. A step takes the first ones as its seed and learning rate.
ARGUMENTS = ("seed", "optimizer.learning_rate", "optimizer.warmup_steps")
WEIGHT_DECAY = "optimizer.weight_decay"
# Modules have these as attributes, with the ending "_rate".
RATES = (
    "model.dropout",
    "model.attention_dropout",
    "model.activation_dropout",
    "model.final_dropout",
)
# These are constants in the programs of a separate run.
TRACED = (*RATES, "training.label_smoothing", WEIGHT_DECAY)


def stacked_update(run: Run, size: int) -> Any:
    """Returns a jitted function that makes an update of `size` trials.

    Its arguments are the stacked states of the trials, and a tuple (batch, seed, learning rate,
    numbers) for each trial, where `numbers` has the trial's values of keys of TRACED. It returns
    the new states, and a tuple (count of updates, metrics) for each trial.
    """
    config = run.config
    constant = optax.constant_schedule(0.0)  # unused: the learning rate is an argument
    pieces = run.tokenizer.source.pieces

    def update_one(state: TrainState, arguments: tuple):
        # The step of one trial, as in a separate run, but with traced values instead of constants.
        batch, seed, rate, numbers = arguments
        optimizer = make_run_optimizer(config, constant)
        if WEIGHT_DECAY in numbers:
            update = functools.partial(optimizer.update, weight_decay=numbers[WEIGHT_DECAY])
            optimizer = optax.GradientTransformationExtraArgs(optimizer.init, update)

        step = CompiledStep(
            config, run.initializer.graph, optimizer, constant, run.train_step.mesh, pieces
        )

        # The loss reads the dropout rates from the modules, and label smoothing from the config.
        training = with_changes(config.training)
        label_smoothing = numbers.get("training.label_smoothing", training.label_smoothing)
        with training.ignore_type():  # it may be a traced array
            training.label_smoothing = label_smoothing
        loss = OBJECTIVES[training.objective].make_loss(training, step.mesh)
        step.loss = lambda model, *inputs: loss(_with_rates(model, numbers), *inputs)
        return step.update(state, batch, seed, rate)

    def update(states: TrainState, arguments: tuple):
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *arguments)
        states, metrics = jax.vmap(update_one)(states, stacked)
        # Select inside the program, so that each trial gets separate arrays.
        results = [
            _select((count_updates(states.optimizer_state), metrics), slot) for slot in range(size)
        ]
        return states, results

    return jax.jit(update, donate_argnums=0)


def _with_rates(model: nnx.Module, numbers: Mapping[str, jax.Array]) -> nnx.Module:
    """Returns the model after setting the dropout rates of its modules."""
    for _, module in nnx.iter_modules(model):
        for key in numbers.keys() & set(RATES):
            name = key.removeprefix("model.") + "_rate"
            if hasattr(module, name):
                setattr(module, name, nnx.data(numbers[key]))
    return model


@functools.partial(jax.jit, donate_argnums=0)
def _replace(states: TrainState, state: TrainState, slot: jax.Array) -> TrainState:
    return jax.tree.map(lambda x, y: x.at[slot].set(y), states, state)


@jax.jit
def _select(tree: Any, slot: jax.Array) -> Any:
    return jax.tree.map(lambda x: x[slot], tree)


class TrialStack:
    """The states of trials that share the program of their step.

    After the end of a trial the program still computes its slot, but nothing reads the results.
    """

    def __init__(self, size: int, keys: Collection[str]) -> None:
        """Makes an empty stack of `size` slots, for trials that differ in `keys`."""
        self.size = size
        self.traced = [key for key in TRACED if key in keys]
        # A trial holds `turn` while it prepares and compiles, so that the next trials find its
        # programs, and while it starts to save, since Orbax numbers the saves of a process.
        self.turn = threading.Lock()
        self._programs = Programs()
        self._update = None
        self._states = None
        self._slots = {}  # by trial
        self._waiting = {}  # arguments of the next step, by slot
        self._results = Future()  # results of the next step, by slot
        self._lock = threading.Lock()

    def enter(self, trial: Hashable) -> None:
        """Gives a trial a slot.

        From now on all trials wait for its steps, so that all validate at the same time.
        """
        with self._lock:
            free = set(range(self.size)) - set(self._slots.values())
            self._slots[trial] = min(free)

    def leave(self, trial: Hashable) -> None:
        with self._lock:
            del self._slots[trial]
            self._take_if_all_wait()

    def member_step(self, trial: Hashable, run: Run) -> "MemberStep":
        """Returns the step of a trial, a replacement for `run.train_step`."""
        if self._update is None:
            self._update = stacked_update(run, self.size)
        config = flatten(run.config)
        numbers = {key: np.float32(config[key]) for key in self.traced}
        return MemberStep(run.train_step, self, self._slots[trial], numbers)

    def compile(self, state: TrainState, arguments: tuple) -> jax.stages.Compiled:
        """Compiles the step for abstract values like the state and the arguments of a trial."""

        def stacked(leaf: Any) -> jax.ShapeDtypeStruct:
            shape = (self.size, *leaf.shape)
            return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=leaf.sharding)

        states = jax.tree.map(stacked, state)
        return self._programs.compile(self._update, states, (arguments,) * self.size)

    def write(self, slot: int, state: TrainState) -> None:
        """Replaces the state of a trial."""
        with self._lock:
            if self._states is None:
                self._states = jax.tree.map(lambda x: jnp.stack([x] * self.size), state)
            else:
                self._states = _replace(self._states, state, slot)

    def read(self, slot: int, part: Callable[[TrainState], Any]) -> Any:
        """Returns a copy of a part of the trial's state."""
        with self._lock:
            return _select(part(self._states), slot)

    def take(self, slot: int, arguments: tuple) -> Any:
        """Returns the results of the trial's next step.

        Blocks until all trials have called this. Raises the error of the step.
        """
        with self._lock:
            self._waiting[slot] = arguments
            results = self._results
            self._take_if_all_wait()
        return results.result()[slot]

    def _take_if_all_wait(self) -> None:
        if not self._waiting or self._waiting.keys() < set(self._slots.values()):
            return
        # A slot without a trial computes with the arguments of another one.
        filler = next(iter(self._waiting.values()))
        arguments = tuple(self._waiting.get(slot, filler) for slot in range(self.size))

        # From here on, `take` waits for the step after this one.
        results = self._results
        self._results = Future()
        self._waiting = {}

        try:
            self._states, values = self._programs.run(self._update, self._states, arguments)
            results.set_result(values)
        except Exception as error:
            self._states = None  # the program has consumed them
            results.set_exception(error)


class MemberStep:
    """The step of a trial in a stack: like a `CompiledStep`, but it returns a `MemberState`."""

    def __init__(
        self, step: CompiledStep, stack: TrialStack, slot: int, numbers: Mapping[str, np.float32]
    ) -> None:
        self._step = step
        self._stack = stack
        self._slot = slot
        self._numbers = numbers
        self._count = None  # number of updates

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def __call__(
        self, state: "TrainState | MemberState", batches: Sequence[Batch]
    ) -> tuple["MemberState", dict]:
        # No accumulation: `together.check` makes sure of it.
        (batch,) = batches
        is_new = isinstance(state, TrainState)  # at the start, or after a rollback
        if is_new:
            self._stack.write(self._slot, state)
            self._count = count_updates(state.optimizer_state)
        # The count of updates is an array on the device, so that no step waits for the previous
        # one.
        rate = self._step.programs.run(self._step.learning_rate, self._count)
        if is_new:
            # The loop keeps a reference to the state, so its memory is freed explicitly.
            jax.tree.map(lambda leaf: leaf.delete(), state)
        arguments = self._arguments(self._step.place(batch), rate)
        self._count, metrics = self._stack.take(self._slot, arguments)
        return MemberState(self._stack, self._slot), metrics

    def compilations(self, state: TrainState, buckets: Sequence[Bucket]) -> list[Callable[[], Any]]:
        """Returns functions that compile the programs for the only bucket.

        This replaces the method of `CompiledStep`.
        """
        (bucket,) = buckets
        # Only the kind of the arguments matters: a batch of shapes, and a rate like the schedule
        # returns.
        count = count_updates(state.optimizer_state)
        rate = jax.ShapeDtypeStruct((), jnp.float32, sharding=count.sharding)
        arguments = self._arguments(self._step.abstract_batch(bucket), rate)
        return [
            lambda: self._stack.compile(state, arguments),
            lambda: self._step.programs.compile(self._step.learning_rate, count),
        ]

    def _arguments(self, batch: Batch, rate: Any) -> tuple:
        return batch, self._step.seed, rate, self._numbers


class MemberState:
    """The state of a trial in a stack. Reading a field copies it out of the stack."""

    def __init__(self, stack: TrialStack, slot: int) -> None:
        self._stack = stack
        self._slot = slot

    def __getattr__(self, name: str) -> Any:
        return self._stack.read(self._slot, operator.attrgetter(name))

    def flatten(self) -> tuple[tuple[TrainState], None]:
        return (self._stack.read(self._slot, lambda states: states),), None


jax.tree_util.register_pytree_node(
    MemberState, MemberState.flatten, lambda _, children: children[0]
)
