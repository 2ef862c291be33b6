"""Estimates a run on absent devices: compiles its step for them and computes the roofline of the programs."""

import dataclasses
import time
from collections.abc import Sequence

import jax
import numpy as np
from absl import logging

from scripts.planning import hlo, roofline
from scripts.planning.devices import Target
from scripts.planning.lengths import Data
from scripts.planning.memory import Memory, explain_compiler, measure
from transformer.config_types import Config
from transformer.data.batches.epoch_plan import Bucket, BucketStats
from transformer.data.batches.loader import PLANS
from transformer.distributed.mesh import make_mesh
from transformer.errors import UserError
from transformer.training.memory import by_memory, bytes_used
from transformer.training.objectives import inputs_of
from transformer.training.optimizer import make_optimizer, make_schedule
from transformer.training.state import Initializer, TrainState
from transformer.training.step import TrainStep

TRITON_FAILURE = "Couldn't find output tile sizes"


@dataclasses.dataclass(frozen=True)
class CompiledShape:
    """The step for batches of one shape."""

    bucket: Bucket
    compile_seconds: float
    cost: roofline.Cost
    memory: Memory
    note: str  # the compiler options that differ from the defaults, in words; "" if none do


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A run on its target devices.

    Attributes:
      lengths: description of the data.
      parameters: number of them.
      stats: the batches of an epoch by shape.
      seconds: of a step with batches of each shape, at the least.
      compiled: the shape that needs most memory and the one with most positions in an epoch, which may be the same.
    """

    lengths: str
    parameters: int
    stats: Sequence[BucketStats]
    seconds: Sequence[float]
    compiled: Sequence[CompiledShape]

    @property
    def largest(self) -> CompiledShape:
        """The shape that needs most memory."""
        return self.compiled[0]

    @property
    def typical(self) -> CompiledShape:
        """The shape with most positions in an epoch."""
        return self.compiled[-1]


def estimate(config: Config, target: Target, devices: Sequence[jax.Device], data: Data) -> Estimate:
    """Compiles the step for the shape that needs most memory and for the one with most positions in an epoch.

    Other shapes take the time per position that lies between these two at their length. Raises UserError if the mesh
    does not match the devices, or the compiler finds that the step does not fit.
    """
    mesh = make_mesh(config, devices)
    schedule = make_schedule(config.optimizer, config.model.d_model, config.training.steps)
    optimizer = make_optimizer(config.optimizer, schedule)
    initializer = Initializer(config, optimizer, mesh, data.vocab_sizes)
    state = initializer.abstract_state
    inputs = inputs_of(config, [""] * data.vocab_sizes[0])
    step = TrainStep(config, initializer.graph, optimizer, schedule, mesh, inputs)
    planner, lengths = PLANS[config.batch.plan], data.corpus.epoch(0, config.seed).lengths
    buckets = planner.choose_shapes(lengths, config.batch)
    stats = planner.plan_epoch(lengths, buckets, np.random.default_rng(config.seed)).stats
    largest = by_memory(config, buckets, mesh.abstract_mesh)[0]
    typical = max(stats, key=lambda shape: shape.positions).bucket
    compiler = Compiler()
    compiled = [compile_shape(step, state, bucket, target, compiler) for bucket in dict.fromkeys([largest, typical])]
    points = sorted((shape.bucket.width, shape.cost.seconds / shape.bucket.positions) for shape in compiled)
    widths, per_position = zip(*points, strict=True)
    buckets = [shape.bucket for shape in stats]
    seconds = [float(np.interp(bucket.width, widths, per_position)) * bucket.positions for bucket in buckets]
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.parameters))
    return Estimate(data.description, parameters, stats, seconds, compiled)


class Compiler:
    """Compiles programs for absent devices.

    Without a GPU to time both on, XLA compiles products by Triton instead of cuBLAS, and fails where Triton's tiles do
    not divide an array's dimensions, such as a length of 24. From then on this compiler uses cuBLAS.

    Attributes:
      note: how the last program differs from what the default options compile; "" if it does not.
    """

    def __init__(self) -> None:
        self.note = ""

    def __call__(self, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
        if not self.note:
            try:
                return lowered.compile()
            except jax.errors.JaxRuntimeError as error:
                if TRITON_FAILURE not in str(error):
                    raise
        self.note = "all products by cuBLAS"
        return lowered.compile(compiler_options={"xla_gpu_enable_triton_gemm": False})


def compile_shape(
    step: TrainStep, state: TrainState, bucket: Bucket, target: Target, compiler: Compiler
) -> CompiledShape:
    """Compiles what an update from batches of this shape executes."""
    logging.info("Compiling the step for %s: batches of %s.", target.text, bucket)
    began = time.perf_counter()
    try:
        programs = [(compiler(lowered), times) for lowered, times in lower(step, state, bucket)]
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise UserError(explain_compiler(step.config, target, str(bucket), str(error))) from None
    compile_seconds = time.perf_counter() - began
    parsed = [(hlo.parse(compiled.as_text()), times) for compiled, times in programs]
    most = max(range(len(programs)), key=lambda i: bytes_used(programs[i][0].memory_analysis()))
    memory = measure(parsed[most][0], programs[most][0], state, target.kind.usable)
    return CompiledShape(bucket, compile_seconds, roofline.cost(parsed, target), memory, compiler.note)


def lower(step: TrainStep, state: TrainState, bucket: Bucket) -> list[tuple[jax.stages.Lowered, int]]:
    """Returns the programs of an update from batches of this shape, and how often it executes each."""
    (function, *arguments), once = step.calls(state, bucket)
    programs = [(function.lower(*arguments), step.config.training.accumulation)]
    return programs + [(function.lower(*arguments), 1) for function, *arguments in once]
