"""The significance of differences, by sacreBLEU's paired bootstrap (Koehn 2004) extended to several seeds.

Sentences. A resample draws all n sentences with replacement, the same ones for every run, so that the difficulty of a
sentence cancels in differences. The score of a system in a resample is the mean over its seeds.

Seeds. A system with k > 1 seeds also resamples these: its score in each resample is shifted by the mean of k - 1 seeds,
drawn with replacement, minus the mean of all k, both on the whole text. Drawing k - 1 makes the variance over seeds
right on average; drawing k would give (k - 1) / k of it (Rao and Wu 1988). With one seed that variance is unknown, and
the interval holds only for these trained models.

The interaction of seeds and sentences is counted twice, which widens intervals by at most a factor of sqrt(2). Two or
three seeds are a small sample, which narrows them. Compare them with the spread.

With one seed a system, all results equal those of `sacrebleu.significance.PairedTest`, which uses the same resamples.
It has no interval for the difference; here it is `estimate_ci` of the differences in the resamples. The p-value
compares the absolute difference with the scatter of absolute differences in the resamples. For a clear difference this
is the one-sided p-value, so that the 95 % interval excludes zero from about p = 0.025 on. It is not corrected for the
number of systems.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Num
from sacrebleu.significance import estimate_ci

from scripts.comparison.metrics import CorpusMetric

SEED = 12345  # sacreBLEU's default


@dataclass(frozen=True)
class Estimate:
    """A score, its 95 % interval, and its values in the resamples."""

    score: float
    interval: tuple[float, float]
    resampled: Float[np.ndarray, "samples"]


def draw_sentences(sentences: int, samples: int) -> Int[np.ndarray, "samples sentences"]:
    """Draws the indices of the sentences in each resample."""
    return np.random.default_rng(SEED).choice(sentences, size=(samples, sentences), replace=True)


def resample(
    metric: CorpusMetric,
    statistics: Num[np.ndarray, "sentences numbers"],
    drawn: Int[np.ndarray, "samples sentences"],
) -> Float[np.ndarray, "samples"]:
    """Returns the scores of one run in the resamples."""
    statistics = statistics.astype("float32")  # as in sacreBLEU
    return metric.score(np.stack([statistics[row].sum(0) for row in drawn]))


def estimate(
    scores: Float[np.ndarray, "seeds"], resampled: Float[np.ndarray, "seeds samples"], number: int
) -> Estimate:
    """Returns a system's score, the mean over its seeds.

    Args:
      scores: score of each seed.
      resampled: score of each seed in each resample.
      number: index of the system; systems draw their seeds independently.
    """
    seeds, samples = resampled.shape
    drawn = np.random.default_rng((SEED, number)).integers(seeds, size=(max(1, seeds - 1), samples))
    means = resampled.mean(0) + scores[drawn].mean(0) - scores.mean()
    return Estimate(float(scores.mean()), _interval(means), means)


def compare(first: Estimate, other: Estimate) -> dict[str, Any]:
    """Returns the difference of the other score from the first, its 95 % interval, and its p-value."""
    difference = other.score - first.score
    differences = other.resampled - first.resampled
    sizes = np.abs(differences)
    # For systems that differ in no resample, sacreBLEU's formula gives the smallest p-value possible.
    larger = int((sizes - sizes.mean() > abs(difference)).sum())
    p_value = (larger + 1) / (len(sizes) + 1) if sizes.any() else 1.0
    return {"difference": difference, "interval": _interval(differences), "p_value": p_value}


def _interval(resampled: Float[np.ndarray, "samples"]) -> tuple[float, float]:
    mean, half = estimate_ci(resampled)
    return float(mean - half), float(mean + half)
