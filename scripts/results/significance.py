"""Confidence intervals and p-values of scores, from the variance over sentences and over seeds.

Sentences. A resample draws n of the n sentences with replacement. All runs are scored on the same
resamples, so that the difficulty of a sentence cancels in differences (paired bootstrap, Koehn
2004).

One seed for each system. All results equal `sacrebleu.significance.PairedTest`, which uses the same
resamples. The interval of the difference is `estimate_ci` of the differences in the resamples. For
a clear difference the p-value is one-sided, so that the 95 % interval excludes zero from about p =
0.025 on. The variance over seeds is unknown: interval and p-value hold only for these trained
models.

Several seeds. The variance of a difference of means is the sum of two parts.

- Seeds: s^2 / k of each system, with the degrees of freedom of Welch's t-test. A system with one
  seed is given the variance of the other system.
- Sentences: the variance in the resamples, minus the interaction of seeds and sentences, which s^2
  already contains.

The interval is the difference ± sqrt(t^2 seeds + z^2 sentences), with the quantiles t of Student's
distribution and z of the normal distribution (Banerjee 1960). Its coverage is at least the coverage
of its two limits: Welch's t-test, and the normal interval of the paired bootstrap. Satterthwaite's
degrees of freedom of the sum would be too many where the seeds happen to agree. The p-value is
two-sided: the level at which the interval reaches zero.

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
SAMPLES = 1000  # resamples; also its default
LEVEL = 0.05  # of a 95 % interval
SMALLEST_P_VALUE = 1e-9


class SeedScores(NamedTuple):
    """The corpus scores of a system by seed, on all sentences and on the resamples."""

    scores: Float[np.ndarray, " seeds"]
    resampled: Float[np.ndarray, "seeds samples"]

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean over seeds."""
        resampled_means = self.resampled.mean(0)
        noise = _noise([self], resampled_means)
        if noise is None:
            return _interval(resampled_means)
        return noise.interval(float(self.scores.mean()))


class Noise(NamedTuple):
    """The variances of an estimate over seeds and sentences.

    `freedom` is the number of degrees of freedom of the variance over seeds.
    """

    seeds: float
    freedom: float
    sentences: float

    def half_width(self, level: float) -> float:
        # sqrt(t^2 seeds + z^2 sentences), with the quantiles of Student's t and the normal.
        t = stdtrit(self.freedom, level / 2)
        z = ndtri(level / 2)
        return math.sqrt(t**2 * self.seeds + z**2 * self.sentences)

    def interval(self, estimate: float) -> tuple[float, float]:
        half_width = self.half_width(LEVEL)
        return estimate - half_width, estimate + half_width

    def p_value(self, estimate: float) -> float:
        if estimate == 0:
            return 1.0
        if self.half_width(SMALLEST_P_VALUE) <= abs(estimate):
            return SMALLEST_P_VALUE
        # The level at which the interval reaches zero.
        return brentq(lambda level: self.half_width(level) - abs(estimate), SMALLEST_P_VALUE, 1.0)


def describe(*seeds: int) -> str:
    """Describes the test of a difference between systems with these numbers of seeds."""
    if max(seeds) == 1:
        return (
            "paired bootstrap over sentences, which does not include the variation between seeds: "
            "train several seeds of each system"
        )
    method = "Student's t over seeds and paired bootstrap over sentences"
    if min(seeds) == 1:
        method += "; the system with one seed is taken to vary as much as the other"
    return method


def resample(
    metric: AdditiveMetric,
    statistics: Num[np.ndarray, "sentences numbers"],
    resamples: Int[np.ndarray, "samples sentences"],
) -> Float[np.ndarray, " samples"]:
    """Returns the scores of one run in the resamples, which hold indices of sentences."""
    statistics = statistics.astype("float32")  # as in sacreBLEU
    return metric.score(np.stack([statistics[row].sum(0) for row in resamples]))


def bootstrap_interval(
    metric: AdditiveMetric, statistics: Num[np.ndarray, "sentences numbers"]
) -> tuple[float, float]:
    """Returns the 95 % interval of a score, from `SAMPLES` resamples of the sentences."""
    count = len(statistics)
    resamples = np.random.default_rng(SEED).choice(count, (SAMPLES, count))
    return _interval(resample(metric, statistics, resamples))


def compare(first: SeedScores, second: SeedScores) -> dict[str, Any]:
    """Returns the `difference` second - first, its 95 % `interval`, and its `p_value`."""
    difference = float(second.scores.mean() - first.scores.mean())
    # The same resample has the same sentences in both systems, so that their difficulty cancels.
    differences = second.resampled.mean(0) - first.resampled.mean(0)
    noise = _noise([first, second], differences)
    if noise is not None:
        interval = noise.interval(difference)
        p_value = noise.p_value(difference)
    else:
        # sacreBLEU's formula gives the smallest possible p-value for systems that are equal in
        # all resamples, so they are an exception.
        sizes = np.abs(differences)
        larger = int((sizes - sizes.mean() > abs(difference)).sum())
        interval = _interval(differences)
        p_value = (larger + 1) / (len(sizes) + 1) if sizes.any() else 1.0
    return {"difference": difference, "interval": interval, "p_value": p_value}


def _noise(systems: list[SeedScores], resampled: Float[np.ndarray, " samples"]) -> Noise | None:
    """Returns the noise of the sum or difference of the systems' means.

    Args:
      systems: one system, or the two that are compared.
      resampled: the sum or difference in the resamples.

    Returns:
      The noise; None if every system has one seed.
    """
    several = [system for system in systems if len(system.scores) > 1]
    if not several:
        return None

    # The variance of a mean is s^2 / k. A system with one seed takes the s^2 of the other.
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
        # The interaction: a resample affects the scores of some seeds more than others.
        deviations = system.resampled - system.resampled.mean(0)  # (seeds, samples)
        interaction += weight * deviations.var(axis=1).sum() / freedom

    # The degrees of freedom of Welch's t-test (the Welch-Satterthwaite equation).
    freedom = seeds**2 / squares if squares else 1.0
    return Noise(float(seeds), float(freedom), max(0.0, float(resampled.var() - interaction)))


def _interval(resampled: Float[np.ndarray, " samples"]) -> tuple[float, float]:
    mean, half_width = estimate_ci(resampled)
    return float(mean - half_width), float(mean + half_width)
