"""Intervals and p-values of scores and their differences, from the variance over sentences and over
seeds.

Sentences. A resample draws all n sentences with replacement, the same ones for every run, so that
the difficulty of a sentence cancels in differences (paired bootstrap, Koehn 2004).

One seed a system. All results equal `sacrebleu.significance.PairedTest`, which uses the same
resamples; the interval of the difference is `estimate_ci` of the differences in the resamples. For
a clear difference the p-value is one-sided, so that the 95 % interval excludes zero from about p =
0.025 on. The variance over seeds is unknown: interval and p-value hold only for these trained
models.

Several seeds. The variance of a difference of means is the sum of two parts.

- Seeds: s^2 / k of each system, with the degrees of freedom of Welch's t-test. A system with one seed has the variance
  of the other one.
- Sentences: the variance in the resamples, minus the interaction of seeds and sentences, which s^2 already contains.

The interval is the difference ± sqrt(t^2 seeds + z^2 sentences), with the quantiles t of Student's
distribution and z of the normal distribution (Banerjee 1960). It covers at least as often as its
two limits: Welch's t-test, and the normal interval of the paired bootstrap. Satterthwaite's degrees
of freedom of the sum would be too many where the seeds happen to agree. The p-value is two-sided:
the level at which the interval reaches zero.

No p-value is corrected for the number of systems.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Num
from sacrebleu.significance import estimate_ci
from scipy.optimize import brentq
from scipy.special import ndtri, stdtrit

from scripts.results.sufficient_statistics import AdditiveMetric

SEED = 12345  # sacreBLEU's default
LEVEL = 0.05  # of a 95 % interval


class Sample(NamedTuple):
    """The corpus scores of a system: of each seed, and of each seed in the resamples."""

    scores: Float[np.ndarray, "seeds"]
    resampled: Float[np.ndarray, "seeds samples"]

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean over seeds."""
        noise = _noise([self], self.resampled.mean(0))
        return (
            noise.interval(float(self.scores.mean()))
            if noise
            else _interval(self.resampled.mean(0))
        )


class Noise(NamedTuple):
    """The variance of an estimate over seeds, the degrees of freedom of this variance, and the one
    over sentences.
    """

    seeds: float
    freedom: float
    sentences: float

    def half_width(self, level: float) -> float:
        t = stdtrit(self.freedom, level / 2)
        z = ndtri(level / 2)
        return math.sqrt(t**2 * self.seeds + z**2 * self.sentences)

    def interval(self, estimate: float) -> tuple[float, float]:
        half = self.half_width(LEVEL)
        return estimate - half, estimate + half

    def p_value(self, estimate: float) -> float:
        smallest = 1e-9  # p-values below it are no different
        if estimate == 0:
            return 1.0
        if self.half_width(smallest) <= abs(estimate):
            return smallest
        return brentq(lambda level: self.half_width(level) - abs(estimate), smallest, 1.0)


def describe(*seeds: int) -> str:
    """Returns how differences between systems with these numbers of seeds are tested, and what the
    test leaves out.
    """
    if max(seeds) == 1:
        return (
            "paired bootstrap over sentences, which does not include the variation between seeds: "
            "train several seeds of each system"
        )
    borrowed = (
        "; the system with one seed is taken to vary as much as the other"
        if min(seeds) == 1
        else ""
    )
    return f"Student's t over seeds and paired bootstrap over sentences{borrowed}"


def resample(
    metric: AdditiveMetric,
    statistics: Num[np.ndarray, "sentences numbers"],
    drawn: Int[np.ndarray, "samples sentences"],
) -> Float[np.ndarray, "samples"]:
    """Returns the scores of one run in the resamples."""
    statistics = statistics.astype("float32")  # as in sacreBLEU
    return metric.score(np.stack([statistics[row].sum(0) for row in drawn]))


def compare(first: Sample, second: Sample) -> dict[str, Any]:
    """Returns the second score minus the first, the 95 % interval of this difference, and its
    p-value.
    """
    difference = float(second.scores.mean() - first.scores.mean())
    differences = second.resampled.mean(0) - first.resampled.mean(0)
    if noise := _noise([first, second], differences):
        interval = noise.interval(difference)
        p_value = noise.p_value(difference)
    else:
        sizes = np.abs(differences)
        # For systems that differ in no resample, sacreBLEU's formula gives the smallest p-value
        # possible.
        larger = int((sizes - sizes.mean() > abs(difference)).sum())
        interval = _interval(differences)
        p_value = (larger + 1) / (len(sizes) + 1) if sizes.any() else 1.0
    return {"difference": difference, "interval": interval, "p_value": p_value}


def _noise(systems: list[Sample], resampled: Float[np.ndarray, "samples"]) -> Noise | None:
    """Returns the noise of the sum or difference of the systems' means, or None if every system has
    one seed.

    Args:
      resampled: the sum or difference in the resamples.
    """
    several = [system for system in systems if len(system.scores) > 1]
    if not several:
        return None
    if len(several) == len(systems):
        weights = [1 / len(system.scores) for system in systems]
    else:
        weights = [sum(1 / len(system.scores) for system in systems)]
    seeds = 0.0
    squares = 0.0
    interaction = 0.0
    for system, weight in zip(several, weights, strict=True):
        freedom = len(system.scores) - 1
        variance = weight * system.scores.var(ddof=1)
        seeds += variance
        squares += variance**2 / freedom
        interaction += (
            weight * (system.resampled - system.resampled.mean(0)).var(axis=1).sum() / freedom
        )
    freedom = seeds**2 / squares if squares else 1.0
    return Noise(float(seeds), float(freedom), max(0.0, float(resampled.var() - interaction)))


def _interval(resampled: Float[np.ndarray, "samples"]) -> tuple[float, float]:
    mean, half = estimate_ci(resampled)
    return float(mean - half), float(mean + half)
