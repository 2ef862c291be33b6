"""Retention of the checkpoints of a run, and of their optimizer states.

It also finds the checkpoint that a run resumes from.
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

# In the best checkpoint, the newest two and the one that is being written. Skipped updates add two.
MAX_OPTIMIZER_STATES = 4


class Retention:
    """Orbax's preservation policy for a run.

    Orbax's own `BestN` forgets the scores on resuming, and does not keep the checkpoints before the
    best for averages.
    """

    def __init__(self, checkpoint_config: Config) -> None:
        self.checkpoint_config = checkpoint_config
        # Both are set by `Checkpoints`.
        self.best: int | None = None  # the step of the best validation
        self.rollback: int | None = None  # the newest saved step that follows no skipped update

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        steps = self.steps_to_keep([checkpoint.step for checkpoint in checkpoints])
        return [checkpoint.step in steps for checkpoint in checkpoints]

    def steps_to_keep(self, steps: Sequence[int]) -> set[int | None]:
        return {self.rollback, *steps_to_keep(steps, self.checkpoint_config, self.best)}


def steps_to_keep(steps: Sequence[int], checkpoint_config: Config, best: int | None) -> set[int]:
    """Returns which of the ascending `steps` stay: to resume from, or for `--average`."""
    every = checkpoint_config.every
    keep = checkpoint_config.keep
    keep_every = checkpoint_config.keep_every
    # A checkpoint of an interruption is not a multiple of `every`. It must not displace a
    # checkpoint that `--average` takes.
    regular = [step for step in steps if step % every == 0]
    up_to_best = []
    if best:
        up_to_best = [step for step in regular if step < best]
        up_to_best += [step for step in steps if step == best]
    permanent = [step for step in steps if keep_every and step % keep_every == 0]
    return {steps[-1], *regular[-keep:], *up_to_best[-keep:], *permanent}


def max_checkpoints(checkpoint_config: Config, last_step: int, eval_every: int) -> int:
    """Returns the largest number of checkpoints that a run can end with.

    The number depends on which step is the best. After skipped updates there may be one more.
    """
    every = checkpoint_config.every
    # All steps at which a run saves without interruptions.
    steps = [*range(every, last_step, every), last_step]
    count = len(steps_to_keep(steps, checkpoint_config, None))
    # Checkpoints up to the best that are not among these. The best may be no multiple of `every`.
    other_count = len(steps) - count + (eval_every % every != 0)
    return count + min(checkpoint_config.keep, other_count)


def remove_optimizer_states(folder: Path, best: int | None) -> None:
    """Deletes the optimizer's state where neither a start nor a rollback needs it.

    Averages only take parameters.
    """
    steps = steps_in(folder)
    resumable = {best, *steps[-2:]}  # two, in case the newest one is damaged
    num_without_skips = 0
    for step in reversed(steps):
        checkpoint = folder / str(step)
        # Leaves damaged checkpoints, which a start that needs them renames.
        with contextlib.suppress(*UNREADABLE):
            # The newest two without skipped updates, for rollbacks.
            if num_without_skips < 2 and read_progress(checkpoint).skipped == 0:
                num_without_skips += 1
            elif step not in resumable and (checkpoint / checksums.OPTIMIZER).exists():
                checksums.remove_optimizer(checkpoint)


def newest_resumable(workdir: Workdir, without_skips: bool = False) -> int | None:
    """Returns the step of the newest undamaged checkpoint with the optimizer's state.

    Renames damaged checkpoints. Returns None if there is no checkpoint. Raises UserError if there
    are checkpoints, but none to resume from. With `without_skips`, the checkpoint must not follow a
    skipped update, and None means that there is no such checkpoint.
    """
    folder = workdir.checkpoints
    for step in reversed(steps_in(folder)):
        checkpoint = folder / str(step)
        damage = checksums.damage(checkpoint, for_training=True)
        if damage:
            number = sum(1 for _ in folder.glob(f"damaged-{step}-*"))
            renamed = checkpoint.rename(folder / f"damaged-{step}-{number}")
            logging.warning(
                "%s: %s; renamed to %s, using the previous checkpoint.",
                checkpoint,
                damage,
                renamed.name,
            )
            continue
        if not checksums.has_optimizer(checkpoint):
            continue
        if without_skips and read_progress(checkpoint).skipped:
            continue
        return step
    # If all checkpoints of a run are damaged, it must not silently start over.
    if not without_skips and (steps_in(folder) or any(folder.glob("damaged-*"))):
        raise UserError(
            f"{folder}: no undamaged checkpoint has the optimizer's state; delete this folder to "
            "start over, or start another --workdir from undamaged parameters with "
            f"--config.training.init_from={workdir.path}"
        )
    return None
