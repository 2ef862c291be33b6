"""The report of `transformer.train --plan`: what a run consists of and costs, before it starts."""

import itertools
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import jax
import numpy as np

from transformer.checkpoints.restore import named_leaves, steps_in
from transformer.checkpoints.retention import MAX_OPTIMIZER_STATES, max_checkpoints
from transformer.data.batches.collation import assemble_batch, place_batch
from transformer.data.batches.loader import DataPosition, Loader
from transformer.data.corpus.sanity_checks import pair_lines
from transformer.run.preparation import Run
from transformer.training.accumulation import phases
from transformer.training.memory import bytes_used

MEASURED_STEPS = 3


def describe(run: Run) -> Iterator[str]:
    """Yields the report's lines.

    Compiles the largest update and measures a few, on a state that is discarded.
    """
    for line in pair_lines(run.config.data, run.tokenizer, run.corpus, columns=68):
        yield f"pair        {line}"

    # Modules are the first two parts of the names, such as encoder.layers.
    parameters = run.initializer.abstract_state.parameters
    leaves = named_leaves(parameters)
    for module, names in itertools.groupby(leaves, lambda name: ".".join(name.split(".")[:2])):
        yield f"parameters  {module}: {sum(leaves[name].size for name in names):,}"
    yield f"parameters  in all: {sum(leaf.size for leaf in leaves.values()):,}"
    if run.parent:
        yield f"parameters  {run.parent.describe(parameters)}"
    with Loader(run.corpus, run.config, DataPosition(0, 0), run.train_step.mesh) as loader:
        yield from batch_lines(run, loader)
        yield from cost_lines(run, loader)


def batch_lines(run: Run, loader: Loader) -> Iterator[str]:
    """Yields the lines about batches and epochs."""
    epoch_plan = loader.epoch_plan
    for use in epoch_plan.stats:
        padding = f"{100 * use.padding_fraction:.1f} % padding"
        yield f"batches     {use.bucket}: {use.batches} per epoch, {padding}"
    yield f"batches     padding in all: {100 * epoch_plan.padding_fraction:.1f} %{run.padding_note}"

    # A run may change the number of batches that it accumulates, so that an epoch has fewer steps.
    training_phases = phases(run.config.training)
    (_, first_count), *later = training_phases
    steps_per_epoch = f"{len(epoch_plan) / first_count:,.1f} steps"
    if later:
        changes = [
            f"{len(epoch_plan) / count:,.1f} from step {steps.start} on" for steps, count in later
        ]
        steps_per_epoch += f" ({', '.join(changes)})"
    num_batches = sum(len(steps) * count for steps, count in training_phases)
    epochs = num_batches / len(epoch_plan)

    lengths = loader.pairs.lengths  # (pairs, 2)
    source_tokens, target_tokens = lengths.sum(axis=0, dtype=np.int64).tolist()
    tokens = f"{target_tokens:,} target" if target_tokens else f"{source_tokens:,} source"
    yield f"epoch       {len(lengths):,} sentences, {tokens} tokens, {steps_per_epoch}"
    yield f"run         {run.config.training.steps:,} steps, {epochs:.1f} epochs"


def cost_lines(run: Run, loader: Loader) -> Iterator[str]:
    """Yields the lines about memory, disk and time."""
    config = run.config
    state = run.initializer.abstract_state
    compile_largest = run.train_step.compilations(state, loader.buckets)[0]
    yield f"largest     {costs(compile_largest())}"

    # Only some checkpoints keep the optimizer's state.
    count = max_checkpoints(config.checkpoint, config.training.steps, config.training.eval_every)
    resumable_count = min(count, MAX_OPTIMIZER_STATES)
    optimizer_size = num_bytes(state.optimizer_state)
    averaged = jax.eval_shape(lambda state: state.averaged_parameters, state)
    other_size = num_bytes((state.parameters, averaged))
    disk = count * other_size + resumable_count * optimizer_size
    yield (
        f"checkpoints at most {count}, {mebibytes(other_size)} each, and "
        f"{mebibytes(optimizer_size)} in {resumable_count} of them for the optimizer, "
        f"{mebibytes(disk)} of disk"
    )

    # The positions of all remaining batches, times the measured seconds per position.
    first_step = max(steps_in(run.workdir.checkpoints), default=0) + 1
    positions = sum(use.positions for use in loader.epoch_plan.stats) / len(loader.epoch_plan)
    seconds = 0.0
    for steps, num_batches in phases(config.training):
        num_steps = steps.stop - max(first_step, steps.start)
        if num_steps > 0:
            num_positions = num_steps * num_batches * positions
            seconds += num_positions * seconds_per_position(run, loader, num_batches)
    time_left = timedelta(seconds=round(seconds))
    source = f"by {MEASURED_STEPS} steps; validation is extra"
    yield f"time        {time_left} of training left, {source}"


def num_bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def mebibytes(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB" if count >= 2**20 else f"{count / 2**20:.2g} MiB"


def costs(program: jax.stages.Compiled) -> str:
    """Describes the memory and operations of a program on one device.

    A backend may report neither.
    """
    parts = []
    memory = program.memory_analysis()
    if memory is not None:
        parts.append(f"{mebibytes(bytes_used(memory))} per device")
    operations = program.cost_analysis() or {}
    if "flops" in operations:
        parts.append(f"{operations['flops'] / 1e9:,.1f} GFLOP per batch and device")
    return ", ".join(parts) or "compiled; this backend reports neither memory nor operations"


def seconds_per_position(run: Run, loader: Loader, num_batches: int) -> float:
    """Measures an update from `num_batches` batches of the largest shape.

    Returns the seconds for each position of source and target.
    """
    batch = max(loader.epoch_plan, key=lambda batch: batch.bucket.positions)
    batches = [place_batch(assemble_batch(loader.pairs, batch), run.train_step.mesh)] * num_batches
    # The first update includes the compilation.
    state, _ = run.train_step(run.initializer.create(), batches)
    jax.block_until_ready(state)
    started = time.perf_counter()
    for _ in range(MEASURED_STEPS):
        state, _ = run.train_step(state, batches)
    jax.block_until_ready(state)
    seconds = (time.perf_counter() - started) / MEASURED_STEPS
    return seconds / (num_batches * batch.bucket.positions)
