"""Retention: which checkpoints of a run stay, and which of them keep the optimizer's state."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer.checkpoints import checksums
from transformer.checkpoints.restore import OPTIMIZER, read_progress, steps_in
from transformer.config_types import Config
from transformer.errors import UNREADABLE

MAX_OPTIMIZER_STATES = 4  # in the best checkpoint, the newest two and the one that is being written


def steps_to_keep(steps: Sequence[int], settings: Config, best: int | None) -> set[int]:
    """Returns the checkpoints to keep: those that training resumes from, and those that `--average` takes.

    Args:
      steps: the steps of the existing checkpoints, in ascending order.
      settings: `config.checkpoint`.
      best: the step of the best checkpoint; None before the first validation.
    """
    # A checkpoint of an interruption is no multiple of `every`. It must not displace one that `--average` takes.
    regular = [step for step in steps if step % settings.every == 0]
    up_to_best = [step for step in steps if best and step <= best and (step == best or step % settings.every == 0)]
    permanent = [step for step in steps if settings.keep_every and step % settings.keep_every == 0]
    return {steps[-1], *regular[-settings.keep :], *up_to_best[-settings.keep :], *permanent}


def max_checkpoints(settings: Config, last_step: int, eval_every: int) -> int:
    """Returns the largest number of checkpoints that a run can end with; it depends on which step is the best."""
    steps = [*range(settings.every, last_step, settings.every), last_step]
    kept = steps_to_keep(steps, settings, None)
    others = len(steps) - len(kept) + (eval_every % settings.every != 0)  # the best may be no multiple of `every`
    return len(kept) + min(settings.keep, others)


class Retention:
    """Orbax's preservation policy for a run. Orbax's own `BestN` loses the scores on resuming and knows no neighbours.

    Attributes:
      best: the step of the best validation.
      rollback: the newest saved step that follows no skipped update.
    """

    def __init__(self, settings: Config) -> None:
        self.settings, self.best, self.rollback = settings, None, None

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        kept = self.kept([checkpoint.step for checkpoint in checkpoints])
        return [checkpoint.step in kept for checkpoint in checkpoints]

    def kept(self, steps: Sequence[int]) -> set[int | None]:
        return {self.rollback, *steps_to_keep(steps, self.settings, self.best)}


def remove_optimizer_states(folder: Path, best: int | None) -> None:
    """Deletes the optimizer's state where neither a start nor a rollback needs it; averages take parameters."""
    steps, without_skips = steps_in(folder), []
    kept = {best, *steps[-2:]}  # the second, in case the newest one is damaged
    for step in reversed(steps):
        # Leaves damaged checkpoints, which a start renames that needs them.
        with contextlib.suppress(*UNREADABLE):
            if len(without_skips) < 2 and read_progress(folder / str(step)).skipped == 0:
                without_skips.append(step)
            elif step not in kept:
                checksums.remove_item(folder / str(step), OPTIMIZER)
