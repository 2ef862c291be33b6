"""The work of `scripts.average`."""

import argparse
import dataclasses
import shutil
from pathlib import Path

import jax
from absl import logging

from transformer import files, fingerprints
from transformer.checkpoints import trained
from transformer.checkpoints.manager import Checkpoints
from transformer.checkpoints.restore import choose_step, read_progress, steps_in
from transformer.checkpoints.trained import Trained
from transformer.errors import UserError
from transformer.training.state import TrainState
from transformer.workdir import Workdir, check_new, new_folder, open_existing


def main(arguments: argparse.Namespace) -> None:
    source, config = open_existing(Path(arguments.workdir))
    last = config.checkpoint.keep if arguments.last is None else arguments.last
    output = Path(arguments.output or f"{source.path}-average{last}")
    check_new(output)  # before the checkpoints are read, which takes longer
    step = find_step(source, arguments.checkpoint, last)
    models = trained.load([str(source.path)], str(step), last, [])
    with new_folder(output) as unfinished:
        write_workdir(unfinished, models)
    steps = ", ".join(map(str, models.checkpoints[0].averaged))
    logging.info("%s: the mean of the checkpoints %s of %s.", output, steps, source.path)
    print(output)


def find_step(source: Workdir, which: str, last: int) -> int:
    """Returns the step that --checkpoint names. Raises UserError if fewer than `last` checkpoints end there."""
    if last < 1:
        raise UserError(f"--last={last}: must be at least 1")
    step = choose_step(source.path, which)
    steps = [other for other in steps_in(source.checkpoints) if other <= step]
    if len(steps) < last:
        raise UserError(
            f"--last={last}: {source.path} has {len(steps)} checkpoint(s) up to step {step} "
            f"({', '.join(map(str, steps))}); average at most {len(steps)}, or train with a higher checkpoint.keep"
        )
    return step


def write_workdir(path: Path, models: Trained) -> None:
    """Writes the files that describe the run, and one checkpoint with the first model's parameters, into a folder."""
    source, workdir = models.workdir, Workdir(path)
    described = (source.config, source.environment, source.data, source.metrics, source.parent, source.events)
    vocabularies = source.path.glob("tokenizer*.model")
    others = source.complete, source.shortlist, source.path / fingerprints.FILE_NAME
    for file in (*described, *others, *vocabularies):
        if file.exists():
            shutil.copy2(file, path)
    checkpoint = models.checkpoints[0]
    # Without a best step, --checkpoint=best takes the only checkpoint there is.
    recorded = read_progress(source.checkpoints / str(checkpoint.step))
    progress = dataclasses.replace(recorded, best_step=None, best_score=None, best_loss=None)
    step, skipped = (jax.numpy.int32(value) for value in (progress.step, progress.skipped))
    with Checkpoints(workdir, models.config) as checkpoints:
        checkpoints.save(TrainState(step, skipped, models.parameters[0], None, None), progress)
    files.write_json(workdir.averaged, {"workdir": str(source.path.resolve()), "steps": checkpoint.averaged})
