"""Estimates of runs on absent devices, from the step that is compiled for the devices."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from absl import logging

from scripts.benchmarking.ours import make_step
from scripts.planning import hlo, roofline
from scripts.planning.devices import Target
from scripts.planning.lengths import Data
from transformer.config.types import Config
from transformer.data.batches.epoch_plan import Bucket
from transformer.data.batches.loader import PLANS
from transformer.support.errors import UserError
from transformer.training.accumulation import phases, update_kinds
from transformer.training.compiled_step import CompiledStep
from transformer.training.memory import bytes_used, sort_by_memory
from transformer.training.state import TrainState

TRITON_FAILURE = "Couldn't find output tile sizes"
GIB = 2**30
PARTS = {
    "parameters": "parameters",
    "optimizer_state": "optimizer state",
    "ema_parameters": "averaged parameters",
}


class MemoryEstimate(NamedTuple):
    """Bytes on a device while a step runs.

    Attributes:
      used: all bytes.
      available: bytes of the device that a program can use.
      state: bytes of the parts of the training state, by name.
      temporaries: all other bytes.
    """

    used: int
    available: int
    state: dict[str, int]
    temporaries: int

    @property
    def fits(self) -> bool:
        return self.used <= self.available

    @property
    def sizes(self) -> str:
        """The used and the available memory, as text."""
        return f"{self.used / GIB:.2f} of {self.available / GIB:.2f} GiB"

    def __str__(self) -> str:
        parts = [f"{name} {size / GIB:.2f} GiB" for name, size in self.state.items()]
        temporaries = f"{self.temporaries / GIB:.2f} GiB"
        return f"{', '.join(parts)}; activations, gradients and other temporaries {temporaries}"


class CompiledShape(NamedTuple):
    """The step for batches of one shape.

    Attributes:
      bucket: the shape.
      batches: the number of batches of an update in the longest phase of the run
          (`training.accumulation_changes`).
      cost: the cost of such an update.
      step_seconds: the mean over all updates of the run.
      memory: the memory of the program that needs most.
    """

    bucket: Bucket
    batches: int
    cost: roofline.Cost
    step_seconds: float
    memory: MemoryEstimate


class AcceleratorEstimate(NamedTuple):
    """The estimate of a run on its target devices.

    Attributes:
      parameters: number of parameters.
      largest: the shape that needs most memory.
      typical: the shape with most positions in an epoch, which may be the same.
      step_seconds: the mean time of a step over the batches of an epoch, at the least.
      step_tokens: the mean number of source and target tokens of a step.
    """

    parameters: int
    largest: CompiledShape
    typical: CompiledShape
    step_seconds: float
    step_tokens: float


def estimate_run(
    config: Config, target: Target, devices: Sequence[jax.Device], data: Data
) -> AcceleratorEstimate:
    """Compiles the step for two shapes: the one with most memory, and the one with most positions.

    The time per position of the other shapes is interpolated at their length between these two.
    Raises UserError if the mesh does not match the devices, or the compiler finds that the step
    does not fit.
    """
    step, initializer = make_step(config, devices, data.vocab_sizes)
    state = initializer.abstract_state
    planner = PLANS[config.batch.plan]

    # The shapes of all batches, and how many batches of each an epoch has.
    buckets = planner.choose_shapes(data.corpus.all_pairs().lengths, config.batch)
    lengths = data.corpus.epoch(0, config.seed).lengths
    stats = planner.plan_epoch(lengths, buckets, np.random.default_rng(config.seed)).stats

    largest = sort_by_memory(config, buckets)[0]
    typical = max(stats, key=lambda shape: shape.positions).bucket
    compiled = [
        compile_shape(step, state, bucket, target) for bucket in dict.fromkeys([largest, typical])
    ]

    # The time of attention per position grows with the length.
    points = sorted(
        (shape.bucket.width, shape.step_seconds / shape.bucket.positions) for shape in compiled
    )
    widths, seconds_per_position = zip(*points, strict=True)
    seconds = []
    for shape in stats:
        per_position = float(np.interp(shape.bucket.width, widths, seconds_per_position))
        seconds.append(per_position * shape.bucket.positions)
    batches = [shape.batches for shape in stats]

    # Tokens of a step: those of a mean batch, times the mean number of batches of an update.
    training = config.training
    batches_in_run = sum(len(steps) * count for steps, count in phases(training))
    tokens_per_batch = sum(shape.tokens for shape in stats) / sum(batches)
    return AcceleratorEstimate(
        parameters=sum(leaf.size for leaf in jax.tree.leaves(state.parameters)),
        largest=compiled[0],
        typical=compiled[-1],
        step_seconds=float(np.average(seconds, weights=batches)),
        step_tokens=tokens_per_batch * (batches_in_run / training.steps),
    )


def compile_shape(
    step: CompiledStep, state: TrainState, bucket: Bucket, target: Target
) -> CompiledShape:
    """Compiles the programs of an update from batches of this shape."""
    logging.info("Compiling the step for %s: batches of %s.", target.text, bucket)
    training = step.config.training
    compiled = []
    programs = {}  # parsed, by whether the update accumulates gradients
    try:
        for is_accumulated in update_kinds(training):
            # One program makes a whole update, or several programs accumulate gradients for it.
            calls = [step.batch_call(state, bucket, is_accumulated)]
            if is_accumulated:
                calls += step.shared_calls(state)
            executables = [
                compile_program(function.lower(*arguments)) for function, *arguments in calls
            ]
            compiled += executables
            programs[is_accumulated] = [hlo.parse(program.as_text()) for program in executables]
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        # The first line has the sizes, without the list of allocations.
        reason = str(error).splitlines()[0].removeprefix("RESOURCE_EXHAUSTED: ").removesuffix(".")
        raise UserError(explain(step.config, target, str(bucket), reason)) from None

    costs = []
    for steps, count in phases(training):
        # The gradients run for each batch, the other programs once for each update.
        gradients, *shared = programs[count > 1]
        runs = [(gradients, count), *((program, 1) for program in shared)]
        costs.append((len(steps), count, roofline.cost(runs, target)))

    seconds = sum(steps * cost.seconds for steps, _, cost in costs) / training.steps
    _, count, cost = max(costs, key=lambda phase: phase[0])

    largest = max(compiled, key=lambda program: bytes_used(program.memory_analysis()))
    memory = measure_memory(largest, _state_parts(state), target.kind.usable)
    return CompiledShape(bucket, count, cost, seconds, memory)


def compile_program(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compiles a program for absent devices.

    XLA cannot time Triton's matmuls against cuBLAS's without a GPU, and compiles them by Triton. It
    fails where Triton's tiles do not divide an array's dimensions, such as a length of 24. Such a
    program is compiled with cuBLAS.
    """
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if TRITON_FAILURE not in str(error):
            raise

    logging.warning(
        "Triton has no tiles for these shapes: cuBLAS computes all products of the program."
    )
    return lowered.compile(compiler_options={"xla_gpu_enable_triton_gemm": False})


def measure_memory(
    compiled: jax.stages.Compiled, parts: dict[str, int], available: int
) -> MemoryEstimate:
    """Returns the memory of a compiled program, given the bytes of parts of it by name."""
    analysis = compiled.memory_analysis()
    # The compiler reports both, and the larger one has to fit.
    used = max(bytes_used(analysis), analysis.peak_memory_in_bytes)
    return MemoryEstimate(used, available, parts, used - sum(parts.values()))


def _state_parts(state: TrainState) -> dict[str, int]:
    """Returns the bytes of the parts of an abstract state on a device, by name."""
    parts = {}
    for name, title in PARTS.items():
        leaves = jax.tree.leaves(getattr(state, name))
        if leaves:
            parts[title] = sum(map(_shard_bytes, leaves))
    return parts


def _shard_bytes(leaf: jax.ShapeDtypeStruct) -> int:
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


def explain(config: Config, target: Target, shape: str, reason: str) -> str:
    """Returns the message for a step that does not fit, with the keys that make it smaller."""
    return (
        f"--device={target.text}: a step of {shape} does not fit ({reason}); "
        f"lower config.batch.tokens={config.batch.tokens} and raise config.training.accumulation "
        "in return, lower config.data.max_length, set config.model.remat=layers, raise "
        "config.mesh.fsdp (with more devices), or use config.optimizer.name=adafactor "
        "or a smaller model"
    )
