"""The report of `transformer.train --plan`: what a run consists of and costs, before it starts."""

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import jax
import numpy as np

from transformer.checkpoints.restore import steps_in
from transformer.checkpoints.retention import MAX_OPTIMIZER_STATES, max_checkpoints
from transformer.data.batches.collation import place
from transformer.data.batches.loader import Loader, Position
from transformer.data.corpus.sanity_checks import pair_lines
from transformer.run.preparation import Run
from transformer.training.memory import bytes_used
from transformer.training.state import TrainState

MEASURED_STEPS = 3


def describe(run: Run) -> Iterator[str]:
    """Yields the report's lines. Compiles the largest update and measures a few, on a state that is discarded."""
    for line in pair_lines(run.config.data, run.tokenizer, run.corpus, columns=68):
        yield f"pair        {line}"
    yield from parameter_lines(run.initializer.abstract_state.parameters)
    if run.parent:
        yield f"parameters  {run.parent.describe(run.initializer.abstract_state.parameters)}"
    with Loader(run.corpus, run.config, Position(0, 0), run.train_step.mesh, run.workdir.plans) as loader:
        yield from batch_lines(run, loader)
        yield from cost_lines(run, loader)


def parameter_lines(parameters: dict) -> Iterator[str]:
    for stack, modules in parameters.items():
        for name, tree in modules.items():
            yield f"parameters  {stack}.{name}: {count(tree):,}"
    yield f"parameters  in all: {count(parameters):,}"


def batch_lines(run: Run, loader: Loader) -> Iterator[str]:
    for use in loader.plan.stats:
        yield f"batches     {use.bucket}: {use.batches} per epoch, {100 * use.padding_fraction:.1f} % padding"
    per_epoch = len(loader.plan) / run.config.training.accumulation
    source_tokens, target_tokens = run.corpus.lengths.sum(axis=0, dtype=np.int64).tolist()
    tokens = f"{target_tokens:,} target" if target_tokens else f"{source_tokens:,} source"
    yield f"batches     padding in all: {100 * loader.plan.padding_fraction:.1f} %{run.padding_note}"
    yield f"epoch       {len(run.corpus):,} {run.corpus.unit}, {tokens} tokens, {per_epoch:,.1f} steps"
    yield f"run         {run.config.training.steps:,} steps, {run.config.training.steps / per_epoch:.1f} epochs"


def cost_lines(run: Run, loader: Loader) -> Iterator[str]:
    config, state = run.config, run.initializer()
    compile_largest = run.train_step.compilations(state, loader.buckets)[0]
    yield f"largest     {costs(compile_largest())}"
    kept = max_checkpoints(config.checkpoint, config.training.steps, config.training.eval_every)
    abstract = run.initializer.abstract_state
    optimizer = mebibytes(abstract.optimizer_state)
    others, resumable = mebibytes(abstract) - optimizer, min(kept, MAX_OPTIMIZER_STATES)
    yield (
        f"checkpoints at most {kept}, {others:,.0f} MiB each, and {optimizer:,.0f} MiB in {resumable} of them for the "
        f"optimizer, {kept * others + resumable * optimizer:,.0f} MiB of disk"
    )
    seconds = seconds_per_position(run, state, loader)
    per_batch = sum(use.positions for use in loader.plan.stats) / len(loader.plan)
    done = max(steps_in(run.workdir.checkpoints), default=0)
    batches = config.training.accumulation * (config.training.steps - done)
    left = timedelta(seconds=round(seconds * per_batch * batches))
    yield f"time        {left} of training left, by {MEASURED_STEPS} steps; validation is extra"


def mebibytes(tree: Any) -> float:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)) / 2**20


def costs(program: jax.stages.Compiled) -> str:
    """Describes the memory and operations of a program on one device, as far as the backend reports them."""
    memory, operations = program.memory_analysis(), program.cost_analysis() or {}
    parts = [f"{bytes_used(memory) / 2**20:,.0f} MiB per device"] if memory is not None else []
    parts += [f"{operations['flops'] / 1e9:,.1f} GFLOP per batch and device"] if "flops" in operations else []
    return ", ".join(parts) or "compiled; this backend reports neither memory nor operations"


def seconds_per_position(run: Run, state: TrainState, loader: Loader) -> float:
    """Measures updates from the largest batch and returns the seconds for each of its positions, of both sides."""
    # The few pairs of a bucket may all have moved to the next one, which leaves it without a batch.
    largest = max((use.bucket for use in loader.plan.stats if use.batches), key=lambda bucket: bucket.positions)
    number = next(number for number in range(len(loader.plan)) if loader.plan[number].bucket == largest)
    arrays = place(loader.pairs, loader.plan[number], run.train_step.mesh)
    batches = [arrays] * run.config.training.accumulation
    state, _ = run.train_step(state, batches)
    jax.block_until_ready(state)
    began = time.perf_counter()
    for _ in range(MEASURED_STEPS):
        state, _ = run.train_step(state, batches)
    jax.block_until_ready(state)
    return (time.perf_counter() - began) / MEASURED_STEPS / (len(batches) * largest.positions)


def count(tree: dict) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))
