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
from transformer.data.batches.collation import assemble, place
from transformer.data.batches.loader import Loader, Position
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
    parameters = run.initializer.abstract_state.parameters
    leaves = named_leaves(parameters)
    for module, names in itertools.groupby(leaves, lambda name: ".".join(name.split(".")[:2])):
        yield f"parameters  {module}: {sum(leaves[name].size for name in names):,}"
    yield f"parameters  in all: {sum(leaf.size for leaf in leaves.values()):,}"
    if run.parent:
        yield f"parameters  {run.parent.describe(parameters)}"
    with Loader(run.corpus, run.config, Position(0, 0), run.train_step.mesh) as loader:
        yield from batch_lines(run, loader)
        yield from cost_lines(run, loader)


def batch_lines(run: Run, loader: Loader) -> Iterator[str]:
    for use in loader.plan.stats:
        yield f"batches     {use.bucket}: {use.batches} per epoch, {100 * use.padding_fraction:.1f} % padding"
    by_phase = phases(run.config.training)
    num_batches = len(loader.plan)
    (_, count), *later = by_phase
    changes = [f"{num_batches / count:,.1f} from step {steps.start} on" for steps, count in later]
    per_epoch = f"{num_batches / count:,.1f} steps" + (
        f" ({', '.join(changes)})" if changes else ""
    )
    epochs = sum(len(steps) * count for steps, count in by_phase) / num_batches
    read = loader.pairs.lengths
    source_tokens, target_tokens = read.sum(axis=0, dtype=np.int64).tolist()
    tokens = f"{target_tokens:,} target" if target_tokens else f"{source_tokens:,} source"
    yield f"batches     padding in all: {100 * loader.plan.padding_fraction:.1f} %{run.padding_note}"
    yield f"epoch       {len(read):,} sentences, {tokens} tokens, {per_epoch}"
    yield f"run         {run.config.training.steps:,} steps, {epochs:.1f} epochs"


def cost_lines(run: Run, loader: Loader) -> Iterator[str]:
    config = run.config
    state = run.initializer.abstract_state
    compile_largest = run.train_step.compilations(state, loader.buckets)[0]
    yield f"largest     {costs(compile_largest())}"
    kept = max_checkpoints(config.checkpoint, config.training.steps, config.training.eval_every)
    optimizer = num_bytes(state.optimizer_state)
    resumable = min(kept, MAX_OPTIMIZER_STATES)
    rest = num_bytes(state) - optimizer
    yield (
        f"checkpoints at most {kept}, {mebibytes(rest)} each, and {mebibytes(optimizer)} in {resumable} of them for "
        f"the optimizer, {mebibytes(kept * rest + resumable * optimizer)} of disk"
    )
    first = max(steps_in(run.workdir.checkpoints), default=0) + 1
    per_batch = sum(use.positions for use in loader.plan.stats) / len(loader.plan)
    remaining = [
        (range(max(first, steps.start), steps.stop), count)
        for steps, count in phases(config.training)
    ]
    times = [
        len(steps) * count * seconds_per_position(run, loader, count)
        for steps, count in remaining
        if steps
    ]
    left = timedelta(seconds=round(per_batch * sum(times)))
    yield f"time        {left} of training left, by {MEASURED_STEPS} steps; validation is extra"


def num_bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def mebibytes(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB" if count >= 2**20 else f"{count / 2**20:.2g} MiB"


def costs(program: jax.stages.Compiled) -> str:
    """Describes the memory and operations of a program on one device, as far as the backend reports
    them.
    """
    memory = program.memory_analysis()
    operations = program.cost_analysis() or {}
    parts = [f"{mebibytes(bytes_used(memory))} per device"] if memory is not None else []
    parts += (
        [f"{operations['flops'] / 1e9:,.1f} GFLOP per batch and device"]
        if "flops" in operations
        else []
    )
    return ", ".join(parts) or "compiled; this backend reports neither memory nor operations"


def seconds_per_position(run: Run, loader: Loader, num_batches: int) -> float:
    """Measures updates from so many of the largest batch and returns the seconds for each position,
    of both sides.
    """
    batch = max(loader.plan, key=lambda batch: batch.bucket.positions)
    batches = [place(assemble(loader.pairs, batch), run.train_step.mesh)] * num_batches
    state, _ = run.train_step(run.initializer.create(), batches)
    jax.block_until_ready(state)
    began = time.perf_counter()
    for _ in range(MEASURED_STEPS):
        state, _ = run.train_step(state, batches)
    jax.block_until_ready(state)
    return (time.perf_counter() - began) / MEASURED_STEPS / (num_batches * batch.bucket.positions)
