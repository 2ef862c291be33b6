"""Fits and measures probabilities, such as the confidence in translations.

An item, such as a sentence or a word, is right or wrong. Its confidence is the probability that it
is right. Two numbers measure confidences:

- AUC: the probability that a right item has a higher confidence than a wrong one, with 1/2 for
  equal ones (the Mann-Whitney statistic)
- the expected calibration error (Guo et al. 2017, "On Calibration of Modern Neural Networks"):
  sum of |B|/n |accuracy(B) - confidence(B)| over bins B of equal width
"""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import rankdata

from transformer.decoding.confidence import Features, probabilities

Values = Float[np.ndarray, "N"]  # of N items, such as their confidences
Labels = Bool[np.ndarray, "N"]
# 1: probabilities rise with the feature; -1: they fall.
SIGNS = {"mean": 1, "lowest": 1, "mean_of_passes": 1, "deviation_of_passes": -1}
# Half of it times the squares of the weights of standardized features, which therefore have a
# standard normal prior. Weights are finite even if a feature separates right from wrong.
PENALTY = 1.0
BINS = 10
FOLDS = 10
SAMPLES = 1000  # of the bootstrap
LEVELS = (0.025, 0.975)  # of a 95 % interval
SEED = 12345


def fit(features: Features, is_right: Labels) -> dict[str, float]:
    """Returns the weights of a logistic regression with `PENALTY` and the signs of `SIGNS`."""
    values = np.stack(list(features.values()), axis=1)
    center = values.mean(axis=0)
    scale = values.std(axis=0)
    scale[scale == 0] = 1.0
    scale *= [SIGNS[name] for name in features]
    values = (values - center) / scale

    def loss(weights: Float[np.ndarray, " F"]) -> tuple[float, Float[np.ndarray, " F"]]:
        """Returns the negative log-likelihood with the penalty, and its gradient."""
        intercept, *coefficients = weights
        logits = intercept + values @ coefficients
        error = expit(logits) - is_right
        penalty = PENALTY * np.array([0.0, *coefficients])  # none on the intercept
        likelihood = np.logaddexp(0.0, logits).sum() - logits @ is_right
        gradient = np.array([error.sum(), *(error @ values)]) + penalty
        return likelihood + 0.5 * weights @ penalty, gradient

    result = minimize(
        loss,
        np.zeros(1 + len(features)),
        jac=True,
        method="L-BFGS-B",
        bounds=[(None, None), *[(0.0, None)] * len(features)],
        options={"ftol": 1e-14, "gtol": 1e-8},
    )
    # The weights of the features as they are, without standardization.
    coefficients = result.x[1:] / scale
    intercept = float(result.x[0] - coefficients @ center)
    return {"intercept": intercept, **dict(zip(features, coefficients.tolist(), strict=True))}


def cross_validate(features: Features, is_right: Labels) -> Values:
    """Returns the confidence in each item, by weights that were fitted on the other folds."""
    folds = np.random.default_rng(SEED).permutation(len(is_right)) % FOLDS
    confidences = np.empty(len(is_right))
    for fold in range(FOLDS):
        is_held_out = folds == fold
        weights = fit(_select(features, ~is_held_out), is_right[~is_held_out])
        confidences[is_held_out] = probabilities(weights, _select(features, is_held_out))
    return confidences


def _select(features: Features, rows: Labels) -> Features:
    return {name: values[rows] for name, values in features.items()}


def auc(confidences: Values, is_right: Labels) -> float:
    """Returns the AUC; NaN if all items are right, or all wrong."""
    num_right = is_right.sum()
    num_pairs = num_right * (len(is_right) - num_right)
    if not num_pairs:
        return float("nan")
    # Mann-Whitney's U from the ranks of the right items.
    wins = rankdata(confidences)[is_right].sum() - num_right * (num_right + 1) / 2
    return float(wins / num_pairs)


def reliability(confidences: Values, is_right: Labels) -> Float[np.ndarray, "B 3"]:
    """Returns size, mean confidence and accuracy of each bin that has items."""
    bins = np.minimum((confidences * BINS).astype(int), BINS - 1)
    sizes = np.bincount(bins, minlength=BINS)
    sums = [np.bincount(bins, values, BINS) for values in (confidences, is_right)]
    rows = np.stack([sizes, *(total / np.maximum(sizes, 1) for total in sums)], axis=1)
    return rows[sizes > 0]


def calibration_error(confidences: Values, is_right: Labels) -> float:
    sizes, confidence, accuracy = reliability(confidences, is_right).T
    return float(sizes @ abs(accuracy - confidence) / len(is_right))


MEASURES = (auc, calibration_error)


def measure(
    confidences: Values,
    is_right: Labels,
    sentences: Int[np.ndarray, " N"] | None = None,
) -> dict[str, Any]:
    """Returns both measures with 95 % intervals; None for the AUC if it is not defined.

    The bootstrap resamples the sentences, with all of their items. `sentences` has the number of
    each item's sentence, from 0. None: each item is a sentence.
    """
    if sentences is None:
        sentences = np.arange(len(is_right))
    random = np.random.default_rng(SEED)
    count = sentences.max() + 1
    resampled = []
    for _ in range(SAMPLES):
        copies = np.bincount(random.choice(count, count), minlength=count)[sentences]
        rows = np.repeat(np.arange(len(sentences)), copies)
        resampled.append([function(confidences[rows], is_right[rows]) for function in MEASURES])

    measures: dict[str, Any] = {"items": len(is_right), "right": float(is_right.mean())}
    for function, values in zip(MEASURES, np.transpose(resampled), strict=True):
        # A resample may have no right or no wrong items.
        values = values[np.isfinite(values)]
        is_defined = len(values) > 0
        name = function.__name__
        measures[name] = function(confidences, is_right) if is_defined else None
        measures[f"{name}_interval"] = np.quantile(values, LEVELS).tolist() if is_defined else None
    return measures
