"""The paper's conclusions from Table 3 (sections 5.4 and 6.2), as contrasts of rows with tests.

A contrast is a weighted sum of the means of rows, such as a difference of two rows, or a slope over
several rows. The test is a one-way analysis of variance: a score is the mean of its row plus noise,
and the noise has the same variance in all rows. All rows with several seeds estimate this variance
together, with sum(n - 1) degrees of freedom. A contrast with weights w then has the variance s^2
sum(w^2 / n), and Student's t distribution gives its p-value. So a row with one seed can be compared
too, with a wider interval.

All rows are scored on the same sentences, and the noise comes from training. A p-value says
whether a difference would survive other seeds, not whether it would survive other sentences.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtr

from configs.table3 import ROWS

Scores = Mapping[str, Sequence[float]]  # by row, one for each seed
Weights = Mapping[str, float]
LEVEL = 0.05  # p-values below it decide
MARGINS = {"bleu": 0.5, "perplexity": math.log(1.02)}  # smaller differences are "as good"
HIGHER = 1
LOWER = -1
EQUAL = 0


class Contrast(NamedTuple):
    """A contrast's value, its standard error, and the degrees of freedom of the error."""

    value: float
    error: float
    freedom: int

    def p_above(self, bound: float) -> float:
        """Returns the one-sided p-value of contrast > bound; 1 if all rows have one seed."""
        if not self.freedom:
            return 1.0
        distance = self.value - bound
        # All seeds of a row have equal scores.
        if self.error == 0:
            return 0.0 if distance > 0 else 1.0
        return float(stdtr(self.freedom, -distance / self.error))

    def p_below(self, bound: float) -> float:
        return Contrast(-self.value, self.error, self.freedom).p_above(-bound)

    def p_within(self, margin: float) -> float:
        """Returns the p-value of -margin < contrast < margin.

        It is the p-value of two one-sided tests (Schuirmann 1987).
        """
        return max(self.p_above(-margin), self.p_below(margin))


def estimate(weights: Weights, scores: Scores) -> Contrast:
    """Returns a contrast of rows, with the spread of the seeds of all rows in `scores`."""
    # The pooled variance s^2 of the seeds of all rows.
    freedom = sum(len(row) - 1 for row in scores.values())
    squares = sum(float(np.var(row)) * len(row) for row in scores.values())  # of deviations
    variance = squares / freedom if freedom else math.nan

    # The contrast, and its variance s^2 sum(w^2 / n).
    value = sum(weight * float(np.mean(scores[row])) for row, weight in weights.items())
    factor = sum(weight**2 / len(scores[row]) for row, weight in weights.items())
    return Contrast(value, math.sqrt(variance * factor), freedom)


def per_doubling(sizes: Mapping[str, float]) -> Weights:
    """Returns the weights of the least-squares slope of the means over log2 of the rows' sizes."""
    # The slope of least squares is the sum of y (x - mean x) / sum((x - mean x)^2).
    logs = np.log2(list(sizes.values()))
    centered = logs - logs.mean()
    return dict(zip(sizes, (centered / (centered**2).sum()).tolist(), strict=True))


def versus(row: str, baseline: str) -> Mapping[str, float]:
    """Returns sizes of two rows such that the slope is the difference of their means."""
    return {baseline: 1, row: 2}


class Claim(NamedTuple):
    """A statement about a slope over the sizes of rows.

    `bleu` and `perplexity` are the signs of the slopes of BLEU and of the logarithm of the
    perplexity: HIGHER, LOWER or EQUAL.
    """

    statement: str
    sizes: Mapping[str, float]
    bleu: int = HIGHER
    perplexity: int = LOWER


class Verdict(NamedTuple):
    """The test of a claim.

    Attributes:
      contrast: of the runs.
      paper: the contrast of the paper's scores.
      holds: "yes", "no" or "unclear".
    """

    contrast: Contrast
    paper: float
    p_value: float
    holds: str


CLAIMS = (
    Claim("(A) several heads are better than one", versus("base", "A_h1")),
    Claim("(A) too many heads (32) are worse than 8", versus("base", "A_h32")),
    Claim("(B) wider keys are better, for each doubling", {"B_dk16": 16, "B_dk32": 32, "base": 64}),
    Claim("(C) deeper is better, for each doubling", {"C_N2": 2, "C_N4": 4, "base": 6, "C_N8": 8}),
    Claim("(C) wider is better, for each doubling", {"C_d256": 256, "base": 512, "C_d1024": 1024}),
    Claim(
        "(C) wider feed-forward networks are better, for each doubling",
        {"C_ff1024": 1024, "base": 2048, "C_ff4096": 4096},
    ),
    Claim("(D) dropout helps", versus("base", "D_dropout0")),
    Claim(
        "(D) label smoothing improves BLEU and hurts perplexity",
        versus("base", "D_smoothing0"),
        HIGHER,
        HIGHER,
    ),
    Claim("(E) learned positions are as good", versus("E_learned", "base"), EQUAL, EQUAL),
    Claim("the big model is better", versus("big", "base")),
)


def judge(claim: Claim, measure: str, scores: Scores) -> Verdict | None:
    """Tests a claim on the "bleu" of rows, or on the logarithm of their "perplexity".

    Returns None if fewer than two of its rows have scores.
    """
    sizes = {row: size for row, size in claim.sizes.items() if row in scores}
    if len(sizes) < 2:
        return None

    # A ratio of perplexities is a difference of their logarithms.
    scale = math.log if measure == "perplexity" else float
    scaled = {row: [scale(value) for value in values] for row, values in scores.items()}
    weights = per_doubling(sizes)
    contrast = estimate(weights, scaled)
    paper = sum(weight * scale(getattr(ROWS[row], measure)) for row, weight in weights.items())

    # p-values of the claim and of the opposite claim.
    sign = getattr(claim, measure)
    margin = MARGINS[measure]
    if sign == EQUAL:
        p_value = contrast.p_within(margin)
        p_opposite = min(contrast.p_above(margin), contrast.p_below(-margin))
    elif sign == HIGHER:
        p_value = contrast.p_above(0.0)
        p_opposite = contrast.p_below(0.0)
    else:
        p_value = contrast.p_below(0.0)
        p_opposite = contrast.p_above(0.0)

    holds = "unclear"
    if p_value < LEVEL:
        holds = "yes"
    elif p_opposite < LEVEL:
        holds = "no"
    return Verdict(contrast, paper, p_value, holds)
