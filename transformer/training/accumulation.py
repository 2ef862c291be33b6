"""The number of batches of an update. It may change in the course of a run."""

from transformer.config.types import Config


def phases(training_config: Config) -> list[tuple[range, int]]:
    """Returns the steps of each phase of a run, from 1 on, and the batches of each of its updates.

    Phases that begin after the last step are left out.
    """
    # The first step and the number of batches of each phase.
    starts = [(1, training_config.accumulation)]
    for change in filter(None, training_config.accumulation_changes.split(",")):
        step, count = map(int, change.split(":"))
        if step <= training_config.steps:
            starts.append((step, count))

    # A phase ends where the next one begins.
    ends = [step for step, _ in starts[1:]] + [training_config.steps + 1]
    return [(range(first, end), count) for (first, count), end in zip(starts, ends, strict=True)]


def batches_at(step: int, training_config: Config) -> int:
    """Returns the number of batches of the update that this step makes."""
    return next(count for steps, count in phases(training_config) if step in steps)


def update_kinds(training_config: Config) -> list[bool]:
    """Returns the kinds of updates of a run: True is an update by several batches.

    Example: [True, False] if only some updates accumulate gradients.
    """
    return sorted({count > 1 for _, count in phases(training_config)}, reverse=True)
