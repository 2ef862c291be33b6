"""Estimates a run on absent devices: compiles its step for them and computes the roofline of the
programs.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from absl import logging

from scripts.benchmarking.ours import step_of
from scripts.planning import hlo, roofline
from scripts.planning.devices import Target
from scripts.planning.lengths import Data
from transformer.config.types import Config
from transformer.data.batches.epoch_plan import Bucket
from transformer.data.batches.loader import PLANS
from transformer.support.errors import UserError
from transformer.training.accumulation import accumulates, phases
from transformer.training.compiled_step import CompiledStep
from transformer.training.memory import by_memory, bytes_used
from transformer.training.state import TrainState

TRITON_FAILURE = "Couldn't find output tile sizes"
GIB = 2**30
PARTS = {
    "parameters": "parameters",
    "optimizer_state": "optimizer state",
    "ema_parameters": "averaged parameters",
}


class Memory(NamedTuple):
    """Bytes on a device while a step runs, by kind."""

    used: int
    available: int
    state: dict[str, int]  # of the parts of the state of training
    temporaries: int

    @property
    def fits(self) -> bool:
        return self.used <= self.available

    def __str__(self) -> str:
        state = ", ".join(f"{name} {size / GIB:.2f} GiB" for name, size in self.state.items())
        return f"{state}; activations, gradients and other temporaries {self.temporaries / GIB:.2f} GiB"


class CompiledShape(NamedTuple):
    """The step for batches of one shape."""

    bucket: Bucket
    batches: int  # of an update in the longest phase of the run (`training.accumulation_changes`)
    cost: roofline.Cost  # of such an update
    step_seconds: float  # the mean over all updates of the run
    memory: Memory


class Estimate(NamedTuple):
    """A run on its target devices.

    Attributes:
      parameters: number of them.
      largest: the shape that needs most memory.
      typical: the shape with most positions in an epoch, which may be the same.
      step_seconds: the mean over the batches of an epoch, at the least.
      step_tokens: the mean number of source and target tokens.
    """

    parameters: int
    largest: CompiledShape
    typical: CompiledShape
    step_seconds: float
    step_tokens: float


def estimate(config: Config, target: Target, devices: Sequence[jax.Device], data: Data) -> Estimate:
    """Compiles the step for the shape that needs most memory and for the one with most positions in
    an epoch.

    Other shapes take the time per position that lies between these two at their length. Raises
    UserError if the mesh does not match the devices, or the compiler finds that the step does not
    fit.
    """
    step, initializer = step_of(config, devices, data.vocab_sizes)
    state = initializer.abstract_state
    planner = PLANS[config.batch.plan]
    lengths = data.corpus.epoch(0, config.seed).lengths
    buckets = planner.choose_shapes(data.corpus.all_pairs().lengths, config.batch)
    stats = planner.plan_epoch(lengths, buckets, np.random.default_rng(config.seed)).stats
    largest = by_memory(config, buckets)[0]
    typical = max(stats, key=lambda shape: shape.positions).bucket
    compiled = [
        compile_shape(step, state, bucket, target) for bucket in dict.fromkeys([largest, typical])
    ]
    points = sorted(
        (shape.bucket.width, shape.step_seconds / shape.bucket.positions) for shape in compiled
    )
    widths, per_position = zip(*points, strict=True)
    buckets = [shape.bucket for shape in stats]
    batches = [shape.batches for shape in stats]
    seconds = [
        float(np.interp(bucket.width, widths, per_position)) * bucket.positions
        for bucket in buckets
    ]
    per_step = (
        sum(len(steps) * count for steps, count in phases(config.training)) / config.training.steps
    )
    tokens = sum(shape.tokens for shape in stats) / sum(batches) * per_step
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.parameters))
    return Estimate(
        parameters, compiled[0], compiled[-1], float(np.average(seconds, weights=batches)), tokens
    )


def compile_shape(
    step: CompiledStep, state: TrainState, bucket: Bucket, target: Target
) -> CompiledShape:
    """Compiles the programs of an update from batches of this shape."""
    logging.info("Compiling the step for %s: batches of %s.", target.text, bucket)
    training = step.config.training
    programs = {}
    try:
        for kind in accumulates(training):
            calls = [
                step.batch_call(state, bucket, kind),
                *(step.shared_calls(state) if kind else []),
            ]
            programs[kind] = [
                compile_program(function.lower(*arguments)) for function, *arguments in calls
            ]
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        reason = str(error).splitlines()[0].removeprefix("RESOURCE_EXHAUSTED: ").removesuffix(".")
        raise UserError(explain(step.config, target, str(bucket), reason)) from None
    parsed = {
        kind: [hlo.parse(program.as_text()) for program in compiled]
        for kind, compiled in programs.items()
    }
    costs = []
    for steps, count in phases(training):
        gradients, *once = parsed[count > 1]
        cost = roofline.cost([(gradients, count), *((program, 1) for program in once)], target)
        costs.append((len(steps), count, cost))
    seconds = sum(steps * cost.seconds for steps, _, cost in costs) / training.steps
    _, count, cost = max(costs, key=lambda phase: phase[0])
    largest = max(
        sum(programs.values(), []), key=lambda program: bytes_used(program.memory_analysis())
    )
    return CompiledShape(
        bucket, count, cost, seconds, measure_memory(largest, state, target.kind.usable)
    )


def compile_program(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compiles a program for absent devices.

    Without a GPU to time both on, XLA compiles products by Triton instead of cuBLAS, and fails
    where Triton's tiles do not divide an array's dimensions, such as a length of 24. Such a program
    is compiled with cuBLAS.
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


def measure_memory(compiled: jax.stages.Compiled, state: TrainState, available: int) -> Memory:
    """Returns the memory of a compiled step from an abstract state."""
    analysis = compiled.memory_analysis()
    used = max(bytes_used(analysis), analysis.peak_memory_in_bytes)
    parts = {}
    for name, title in PARTS.items():
        if leaves := jax.tree.leaves(getattr(state, name)):
            shards = [
                (leaf.sharding.shard_shape(leaf.shape), leaf.dtype.itemsize) for leaf in leaves
            ]
            parts[title] = sum(math.prod(shape) * size for shape, size in shards)
    return Memory(used, available, parts, used - sum(parts.values()))


def explain(config: Config, target: Target, shape: str, reason: str) -> str:
    """Returns the message for a step that does not fit, with keys that reduce its batch or its
    state.
    """
    return (
        f"--device={target.text}: a step of {shape} does not fit ({reason}); lower config.batch.tokens="
        f"{config.batch.tokens} and raise config.training.accumulation in return, lower config.data.max_length, set "
        "config.model.remat=layers, raise config.mesh.fsdp (with more devices), or use config.optimizer.name=adafactor "
        "or a smaller model"
    )
