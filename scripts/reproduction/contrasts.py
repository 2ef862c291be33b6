"""Tests of contrasts between rows that were trained with several seeds, or with one.

A contrast is a weighted sum of the means of rows, such as the difference of two, or a slope over several. The test is
that of one-way analysis of variance: a score is the mean of its row plus noise, whose variance is the same for all
rows. The rows with several seeds estimate that variance together, with sum(n - 1) degrees of freedom. A contrast with
weights w then has the variance s^2 sum(w^2 / n), and Student's t distribution gives its p-value. So a row with one
seed can be compared too, with a wider interval.

All rows are scored on the same sentences, and the noise is that of training. A p-value says whether a difference would
survive other seeds, not whether it would survive other sentences.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr

Scores = Mapping[str, Sequence[float]]  # of each row, one a seed
Weights = Mapping[str, float]


@dataclass(frozen=True)
class Contrast:
    """A contrast's value, its standard error, and the degrees of freedom of that."""

    value: float
    error: float
    freedom: int

    def p_above(self, bound: float) -> float:
        """Returns the one-sided p-value of the contrast being above `bound`; 1 if all rows have one seed."""
        if not self.freedom:
            return 1.0
        distance = self.value - bound
        if self.error == 0:
            return 0.0 if distance > 0 else 1.0
        return float(stdtr(self.freedom, -distance / self.error))

    def p_below(self, bound: float) -> float:
        return Contrast(-self.value, self.error, self.freedom).p_above(-bound)

    def p_within(self, margin: float) -> float:
        """Returns the p-value of equivalence by two one-sided tests (Schuirmann 1987): -margin < contrast < margin."""
        return max(self.p_above(-margin), self.p_below(margin))


def estimate(weights: Weights, scores: Scores) -> Contrast:
    """Returns a contrast of rows, with the spread of the seeds of all rows in `scores`."""
    freedom = sum(len(row) - 1 for row in scores.values())
    squares = sum(float(np.var(row)) * len(row) for row in scores.values())
    variance = squares / freedom if freedom else math.nan
    value = sum(weight * float(np.mean(scores[row])) for row, weight in weights.items())
    per_score = sum(weight**2 / len(scores[row]) for row, weight in weights.items())
    return Contrast(value, math.sqrt(variance * per_score), freedom)


def difference(row: str, baseline: str) -> Weights:
    """Returns the weights of the row's mean minus the baseline's."""
    return {row: 1.0, baseline: -1.0}


def per_doubling(sizes: Mapping[str, float]) -> Weights:
    """Returns the weights of the least-squares slope of the means over log2 of the rows' sizes."""
    logs = np.log2(list(sizes.values()))
    centered = logs - logs.mean()
    return dict(zip(sizes, (centered / (centered**2).sum()).tolist(), strict=True))
