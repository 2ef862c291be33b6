"""How sure a difference is: sacreBLEU's paired bootstrap (Koehn 2004), over seeds too where a system has several.

A resample draws as many sentences as there are, with replacement, the same ones for every run, so that what is hard in
a sentence cancels in differences. A system's score is the mean over its seeds on these sentences. Where there are k > 1
seeds it is moved by how far the mean of k - 1 of them, drawn with replacement, lies from the mean of all on the whole
text: drawing one fewer than there are makes the variance that comes of the seeds right on average, where drawing k
would give (k - 1) / k of it (Rao and Wu 1988). With one seed nothing is known of that variance: the interval then holds
for these trained models, not for their settings.

How one seed happens to do on one sentence is in both of the draws, which makes intervals with several seeds too wide by
at most a factor of sqrt(2); that two or three seeds say little of all seeds makes them too narrow. Read them beside the
spread.

Sentences, statistics, scores, interval and p-value are computed as `sacrebleu.significance.PairedTest` does, with its
functions and its seed: with one seed a system they are equal to its own. It has no interval of the difference; here it
is what its `estimate_ci` makes of the differences in the same resamples. Its p-value compares the size of the
difference with how the sizes in the resamples scatter, which for a clear difference is the one-sided p-value: the
interval of 95 % excludes zero from about p = 0.025 on. It is not corrected for the number of systems compared.
"""

from dataclasses import dataclass

import numpy as np
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import _compute_p_value, estimate_ci

SEED = 12345  # sacreBLEU's, of its resamples


@dataclass(frozen=True)
class Estimate:
    """A score with the interval of 95 %, and the scores in the resamples, (samples,), that this comes from."""

    score: float
    interval: tuple[float, float]
    resampled: np.ndarray


@dataclass(frozen=True)
class Difference:
    """Of one system's score from the first one's: more than zero if it is higher."""

    difference: float
    interval: tuple[float, float]
    p_value: float


def draw_sentences(sentences: int, samples: int) -> np.ndarray:
    """Numbers of the sentences in each resample: (samples, sentences)."""
    return np.random.default_rng(SEED).choice(sentences, size=(samples, sentences), replace=True)


def resample(metric: Metric, statistics: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """The scores of one run in the resamples: (samples,).

    statistics: the metric's, of each sentence: (sentences, numbers).
    """
    statistics = statistics.astype("float32")  # as in sacreBLEU
    return np.array([metric._compute_score_from_stats(statistics[row].sum(0)).score for row in drawn])


def estimate(scores: np.ndarray, resampled: np.ndarray, number: int) -> Estimate:
    """A system's score, the mean over its seeds.

    Args:
      scores: of each seed: (seeds,).
      resampled: of each seed in each resample: (seeds, samples).
      number: of the system; systems draw their seeds independently.
    """
    seeds, samples = resampled.shape
    drawn = np.random.default_rng((SEED, number)).integers(seeds, size=(max(1, seeds - 1), samples))
    means = resampled.mean(0) + scores[drawn].mean(0) - scores.mean()
    return Estimate(float(scores.mean()), _interval(means), means)


def compare(first: Estimate, other: Estimate) -> Difference:
    difference = other.score - first.score
    differences = other.resampled - first.resampled
    sizes = np.abs(differences)
    # sacreBLEU gives systems that do not differ in any resample the lowest p-value there is.
    p_value = _compute_p_value(sizes - sizes.mean(), abs(difference)) if sizes.any() else 1.0
    return Difference(difference, _interval(differences), p_value)


def _interval(resampled: np.ndarray) -> tuple[float, float]:
    mean, half = estimate_ci(resampled)
    return float(mean - half), float(mean + half)
