"""Estimates a run on absent devices: compiles its step for them and computes the roofline of the programs."""

import dataclasses
import time
from collections.abc import Sequence

import jax
import numpy as np
from absl import logging

from transformer.config_types import Config
from transformer.data.batches.epoch_plan import Bucket, BucketStats
from transformer.data.batches.loader import PLANS
from transformer.data.corpus.corpus import Corpus
from transformer.distributed.mesh import make_mesh
from transformer.errors import UserError
from transformer.planning import hlo, roofline
from transformer.planning.compilers import Compiler
from transformer.planning.devices import Target
from transformer.planning.memory import Memory, bytes_used, measure
from transformer.planning.oom import explain, explain_compiler
from transformer.training.memory import by_memory
from transformer.training.objectives import inputs_of
from transformer.training.optimizer import make_optimizer, make_schedule
from transformer.training.state import Initializer
from transformer.training.step import TrainStep


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
      parameters: number of them.
      stats: the batches of an epoch by shape.
      seconds: of a step with batches of each shape, at the least.
      largest: the shape that needs most memory.
      typical: the shape with most positions in an epoch.
    """

    parameters: int
    stats: Sequence[BucketStats]
    seconds: Sequence[float]
    largest: CompiledShape
    typical: CompiledShape

    @property
    def mean_seconds(self) -> float:
        """The mean time of a step over an epoch."""
        batches = [each.batches for each in self.stats]
        return float(np.average(self.seconds, weights=batches))


def estimate(
    config: Config, target: Target, devices: Sequence[jax.Device], corpus: Corpus, vocab_sizes: tuple[int, int]
) -> Estimate:
    """Compiles the step for the shape that needs most memory and for the one with most positions in an epoch.

    Other shapes take the time per position that lies between these two at their length. Raises UserError if the mesh
    does not match the devices, or the compiler finds that the step does not fit.
    """
    mesh = make_mesh(config, devices)
    schedule = make_schedule(config.optimizer, config.model.d_model, config.training.steps)
    optimizer = make_optimizer(config.optimizer, schedule)
    initializer = Initializer(config, optimizer, mesh, vocab_sizes)
    state = initializer.abstract_state
    inputs = inputs_of(config, [""] * vocab_sizes[0])
    step = TrainStep(config, initializer.graph, optimizer, schedule, mesh, inputs)
    module = PLANS[config.batch.plan]
    epoch = corpus.epoch(0, config.seed)
    buckets = module.choose_shapes(epoch.lengths, config.batch)
    stats = module.plan_epoch(epoch.lengths, buckets, np.random.default_rng(config.seed)).stats
    compiler = Compiler()
    largest = compile_shape(step, state, by_memory(config, buckets, mesh.abstract_mesh)[0], target, compiler)
    common = max(stats, key=lambda each: each.positions).bucket
    typical = largest if common == largest.bucket else compile_shape(step, state, common, target, compiler)
    seconds = [seconds_of(each.bucket, typical, largest) for each in stats]
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.parameters))
    return Estimate(parameters, stats, seconds, largest, typical)


def compile_shape(step: TrainStep, state, bucket: Bucket, target: Target, compiler: Compiler) -> CompiledShape:
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
    parsed = [(hlo.parse(program.as_text()), times) for program, times in programs]
    number = max(range(len(programs)), key=lambda i: bytes_used(programs[i][0].memory_analysis()))
    memory = measure(parsed[number][0], programs[number][0], state, target.kind.usable)
    return CompiledShape(bucket, compile_seconds, roofline.cost(parsed, target), memory, compiler.note)


def lower(step: TrainStep, state, bucket: Bucket) -> list[tuple[jax.stages.Lowered, int]]:
    """Returns the programs of an update from batches of this shape, and how often it executes each."""
    batch, accumulation = step.abstract_batch(bucket), step.config.training.accumulation
    if accumulation == 1:
        return [(step.update.lower(state, batch, step.seed, step.abstract_rate(state)), 1)]
    totals = step.abstract_totals(state)
    return [
        (step.zeros.lower(state.parameters), 1),
        (step.accumulate.lower(state, batch, 0, totals, step.seed), accumulation),
        (step.apply_gradients.lower(state, totals, step.abstract_rate(state)), 1),
    ]


def seconds_of(bucket: Bucket, *compiled: CompiledShape) -> float:
    """Returns the time of a step with batches of this shape, interpolated in the time per position of the compiled."""
    points = sorted({(each.bucket.width, each.cost.seconds / each.bucket.positions) for each in compiled})
    widths, per_position = zip(*points, strict=True)
    return float(np.interp(bucket.width, widths, per_position)) * bucket.positions


def require_fit(config: Config, target: Target, found: Estimate) -> None:
    """Raises UserError if the step does not fit, with the largest parts of its memory and the keys that reduce it."""
    if not found.largest.memory.fits:
        raise UserError(explain(config, target, str(found.largest.bucket), found.largest.memory))
