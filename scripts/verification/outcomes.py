"""Results of a verification: errors with their bars, and speeds."""

from typing import NamedTuple

import numpy as np


class Outcome(NamedTuple):
    """A result of a check, which passes if the error is at most the bar.

    The error is relative to the largest value of the exact result, unless `name` states otherwise.
    """

    name: str
    error: float
    bar: float

    @property
    def passed(self) -> bool:
        return self.error <= self.bar  # false if the error is NaN


class Speed(NamedTuple):
    """The speed of a task. A value is None if it is not known for the device.

    Attributes:
      task: the name of the task.
      seconds: the time of a step, or of the search for all sentences: the median of several groups
          of repetitions.
      tokens_per_second: source and target tokens of a step, or output tokens, without padding.
      compilation: the time of the first call, in seconds.
      memory: bytes on a device while the program runs.
      utilization: FLOP/s of the step's matmuls, relative to the peak in bfloat16.
      of_bound: the least time of the program on this device (scripts.plan), relative to `seconds`.
    """

    task: str
    seconds: float
    tokens_per_second: float
    compilation: float
    memory: int | None = None
    utilization: float | None = None
    of_bound: float | None = None


def relative_error(values, exact) -> float:
    """Returns the largest difference, relative to the largest value of the exact array."""
    values = np.asarray(values, np.float64)
    exact = np.asarray(exact, np.float64)
    return float(np.max(np.abs(values - exact)) / np.max(np.abs(exact)))


def worst_error(results, exact) -> float:
    """Returns the largest relative error of several arrays; NaN if one error is NaN."""
    pairs = zip(results, exact, strict=True)
    return float(np.max([relative_error(*pair) for pair in pairs]))
