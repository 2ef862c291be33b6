"""Results of a verification: errors of computations, beside the largest that pass, and speeds."""

from typing import NamedTuple

import numpy as np


class Outcome(NamedTuple):
    """A result of a check.

    The error is relative to the largest value of the exact result, unless `name` says more.
    """

    name: str
    error: float
    bar: float

    @property
    def passed(self) -> bool:
        return self.error <= self.bar  # not if it is NaN


class Speed(NamedTuple):
    """The speed of a task. A value is None if the device does not tell it.

    Attributes:
      seconds: of a step, or of the search of all sentences: the median of some groups of
          repetitions.
      tokens_per_second: source and target tokens of a step, or output tokens; padding does not
          count.
      compilation: seconds of the first call.
      memory: bytes on a device while the program runs.
      utilization: FLOPs of the step's products, relative to the peak in bfloat16.
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
    """Returns the largest difference of two arrays, relative to the largest value of the exact one."""
    values, exact = (np.asarray(array, np.float64) for array in (values, exact))
    return float(np.max(np.abs(values - exact)) / np.max(np.abs(exact)))


def worst_error(found, exact) -> float:
    """Returns the largest relative error of several arrays; NaN if one is."""
    return float(np.max([relative_error(*pair) for pair in zip(found, exact, strict=True)]))
