"""Retention: which checkpoints of a run stay, which keep the optimizer's state, and which can be
resumed from.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import logging

from transformer.checkpoints import checksums
from transformer.checkpoints.restore import read_progress, steps_in
from transformer.config.types import Config
from transformer.support.errors import UNREADABLE, UserError
from transformer.workdir import Workdir

MAX_OPTIMIZER_STATES = 4  # in the best checkpoint, the newest two and the one that is being written


class Retention:
    """Orbax's preservation policy for a run.

    Its own `BestN` loses the scores on resuming and knows no neighbours.
    """

    def __init__(self, settings: Config) -> None:
        self.settings = settings
        self.best: int | None = None  # the step of the best validation
        self.rollback: int | None = None  # the newest saved step that follows no skipped update

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        kept = self.kept([checkpoint.step for checkpoint in checkpoints])
        return [checkpoint.step in kept for checkpoint in checkpoints]

    def kept(self, steps: Sequence[int]) -> set[int | None]:
        return {self.rollback, *steps_to_keep(steps, self.settings, self.best)}


def steps_to_keep(steps: Sequence[int], settings: Config, best: int | None) -> set[int]:
    """Returns which of the ascending `steps` stay by `config.checkpoint`: to resume from, or for
    `--average`.
    """
    # A checkpoint of an interruption is no multiple of `every`. It must not displace one that
    # `--average` takes.
    regular = [step for step in steps if step % settings.every == 0]
    up_to_best = [
        step
        for step in steps
        if best and step <= best and (step == best or step % settings.every == 0)
    ]
    permanent = [step for step in steps if settings.keep_every and step % settings.keep_every == 0]
    return {steps[-1], *regular[-settings.keep :], *up_to_best[-settings.keep :], *permanent}


def max_checkpoints(settings: Config, last_step: int, eval_every: int) -> int:
    """Returns the largest number of checkpoints that a run can end with; it depends on which step
    is the best.
    """
    steps = [*range(settings.every, last_step, settings.every), last_step]
    kept = steps_to_keep(steps, settings, None)
    # the best may be no multiple of `every`
    others = len(steps) - len(kept) + (eval_every % settings.every != 0)
    return len(kept) + min(settings.keep, others)


def remove_optimizer_states(folder: Path, best: int | None) -> None:
    """Deletes the optimizer's state where neither a start nor a rollback needs it; averages take
    parameters.
    """
    steps = steps_in(folder)
    without_skips = []
    kept = {best, *steps[-2:]}  # the second, in case the newest one is damaged
    for step in reversed(steps):
        # Leaves damaged checkpoints, which a start renames that needs them.
        with contextlib.suppress(*UNREADABLE):
            if len(without_skips) < 2 and read_progress(folder / str(step)).skipped == 0:
                without_skips.append(step)
            elif step not in kept and (folder / str(step) / checksums.OPTIMIZER).exists():
                checksums.remove_optimizer(folder / str(step))


def newest_resumable(workdir: Workdir, without_skips: bool = False) -> int | None:
    """Returns the step of the newest undamaged checkpoint with the optimizer's state; None if there
    is no checkpoint.

    Renames damaged ones. Raises UserError if there are checkpoints, but none to resume from.
    `without_skips` also requires that it follows no skipped update; then None means that there is
    no such checkpoint.
    """
    folder = workdir.checkpoints
    for step in reversed(steps_in(folder)):
        checkpoint = folder / str(step)
        if damage := checksums.damage(checkpoint, for_training=True):
            number = sum(1 for _ in folder.glob(f"damaged-{step}-*"))
            renamed = checkpoint.rename(folder / f"damaged-{step}-{number}")
            logging.warning(
                "%s: %s; renamed to %s, using the previous checkpoint.",
                checkpoint,
                damage,
                renamed.name,
            )
        elif checksums.has_optimizer(checkpoint) and not (
            without_skips and read_progress(checkpoint).skipped
        ):
            return step
    if not without_skips and (steps_in(folder) or any(folder.glob("damaged-*"))):
        raise UserError(
            f"{folder}: no undamaged checkpoint has the optimizer's state; delete this folder to start over, or start "
            f"another --workdir from undamaged parameters with --config.training.init_from={workdir.path}"
        )
    return None
