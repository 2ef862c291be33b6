"""The checkpoints that a run can resume from, past damaged ones."""

from collections.abc import Iterator
from pathlib import Path

from absl import logging

from transformer.checkpoints import checksums
from transformer.checkpoints.restore import OPTIMIZER, read_progress, steps_in
from transformer.errors import UserError
from transformer.workdir import Workdir


def newest_resumable(workdir: Workdir) -> int | None:
    """Returns the step of the newest undamaged checkpoint with the optimizer's state; None if there is no checkpoint.

    Renames damaged checkpoints, with a warning. Raises UserError if no checkpoint can be used.
    """
    folder = workdir.checkpoints
    for step in _resumable(folder):
        return step
    if steps_in(folder):
        raise UserError(
            f"{folder}: no undamaged checkpoint has the optimizer's state; start another --workdir from these "
            f"parameters with --config.training.init_from={workdir.path}, or delete this folder to start over"
        )
    if damaged := sorted(folder.glob("damaged-*")):
        raise UserError(f"{folder}: all checkpoints are damaged; to start over, delete {damaged[0].name} etc.")
    return None


def newest_without_skips(workdir: Workdir) -> int | None:
    """Returns the newest such checkpoint that follows no skipped update; None if there is none."""
    folder = workdir.checkpoints
    return next((step for step in _resumable(folder) if read_progress(folder / str(step)).skipped == 0), None)


def _resumable(folder: Path) -> Iterator[int]:
    for step in reversed(steps_in(folder)):
        checkpoint = folder / str(step)
        if damage := checksums.damage(checkpoint):
            number = sum(1 for _ in folder.glob(f"damaged-{step}-*"))
            renamed = checkpoint.rename(folder / f"damaged-{step}-{number}")
            logging.warning("%s: %s; renamed to %s, using the previous checkpoint.", checkpoint, damage, renamed.name)
        elif checksums.has_item(checkpoint, OPTIMIZER):
            yield step
