"""The number of batches whose gradients are summed for an update, which may change in the course of
a run.
"""

from transformer.config.types import Config


def phases(training: Config) -> list[tuple[range, int]]:
    """Returns the steps of each phase of a run, from 1 on, and the number of batches of an update
    in it.

    `training` is `config.training`. Phases that begin after the last step are left out.
    """
    changes = [
        map(int, change.split(":")) for change in training.accumulation_changes.split(",") if change
    ]
    starts = [
        (1, training.accumulation),
        *((step, count) for step, count in changes if step <= training.steps),
    ]
    ends = [*(step for step, _ in starts[1:]), training.steps + 1]
    return [(range(first, end), count) for (first, count), end in zip(starts, ends, strict=True)]


def batches_at(step: int, training: Config) -> int:
    """Returns the number of batches of the update that this step makes."""
    return next(count for steps, count in phases(training) if step in steps)


def accumulates(training: Config) -> list[bool]:
    """Returns whether the updates of a run accumulate gradients of several batches: [True, False]
    if only some do.
    """
    return sorted({count > 1 for _, count in phases(training)}, reverse=True)
