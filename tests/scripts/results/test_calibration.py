"""Fits and measures of probabilities: known weights, brute-force counts, and definitions."""

import itertools

import numpy as np
import pytest

from scripts.results.calibration import (
    BINS,
    auc,
    calibration_error,
    cross_validate,
    fit,
    measure,
    reliability,
)
from transformer.decoding.confidence import probabilities


def sample(count: int, weights: dict[str, float], seed: int = 0):
    """Returns random features, and labels with the probabilities of these weights."""
    random = np.random.default_rng(seed)
    features = {
        "mean": random.normal(-0.5, 0.3, count),
        "deviation_of_passes": random.gamma(2.0, 0.05, count),
    }
    return features, random.random(count) < probabilities(weights, features)


WEIGHTS = {"intercept": 3.0, "mean": 5.0, "deviation_of_passes": -8.0}


def test_the_fit_recovers_the_weights_of_the_data():
    fitted = fit(*sample(200_000, WEIGHTS))
    assert fitted == pytest.approx(WEIGHTS, rel=0.05)


def test_the_fit_is_a_minimum_of_the_penalized_loss():
    features, is_right = sample(300, WEIGHTS)
    scales = {name: values.std() for name, values in features.items()}

    def loss(weights):
        p = probabilities(weights, features)
        penalty = sum((weights[name] * scale) ** 2 for name, scale in scales.items()) / 2
        return penalty - np.log(np.where(is_right, p, 1 - p)).sum()

    fitted = fit(features, is_right)
    for name, step in itertools.product(fitted, (-0.01, 0.01)):
        assert loss(fitted) < loss({**fitted, name: fitted[name] + step})


def test_weights_have_the_sign_of_their_feature_or_are_zero():
    features, is_right = sample(2000, {"intercept": 0.0, "mean": -5.0, "deviation_of_passes": 9.0})
    fitted = fit(features, is_right)
    assert fitted["mean"] == 0.0 and fitted["deviation_of_passes"] == 0.0
    share = is_right.mean()
    assert fitted["intercept"] == pytest.approx(np.log(share / (1 - share)), abs=1e-4)


def test_a_feature_that_separates_has_a_finite_weight_and_a_constant_one_has_none():
    mean = np.linspace(-2, 0, 40)
    fitted = fit({"mean": mean, "lowest": np.full(40, -1.0)}, mean > -1)
    assert 0 < fitted["mean"] < 100 and fitted["lowest"] == 0.0


def test_held_out_items_do_not_change_their_own_confidence():
    features, is_right = sample(100, WEIGHTS)
    before = cross_validate(features, is_right)
    changed = is_right.copy()
    changed[7] ^= True
    after = cross_validate(features, changed)
    assert after[7] == before[7]
    # Nine of ten folds were fitted on the item.
    assert (after != before).sum() == 90


@pytest.mark.parametrize("seed", range(3))
def test_auc_counts_pairs(seed):
    random = np.random.default_rng(seed)
    confidences = random.integers(0, 10, 60) / 10  # many are equal
    is_right = random.random(60) < confidences
    wins = [
        (right > wrong) + 0.5 * (right == wrong)
        for right in confidences[is_right]
        for wrong in confidences[~is_right]
    ]
    assert auc(confidences, is_right) == pytest.approx(np.mean(wins))
    assert auc(1 - confidences, is_right) == pytest.approx(1 - np.mean(wins))


def test_auc_needs_right_and_wrong_items():
    assert np.isnan(auc(np.array([0.1, 0.2]), np.array([True, True])))


def test_the_calibration_error_is_that_of_its_definition():
    confidences = np.array([0.05, 0.11, 0.19, 0.95, 1.0, 0.0])
    is_right = np.array([False, True, False, True, False, True])
    # Bins: {0.05, 0.0}, {0.11, 0.19}, {0.95, 1.0}
    expected = (2 * abs(0.5 - 0.025) + 2 * abs(0.5 - 0.15) + 2 * abs(0.5 - 0.975)) / 6
    assert calibration_error(confidences, is_right) == pytest.approx(expected)
    assert reliability(confidences, is_right) == pytest.approx(
        np.array([[2, 0.025, 0.5], [2, 0.15, 0.5], [2, 0.975, 0.5]])
    )
    random = np.random.default_rng(0)
    confidences = random.random(500)
    is_right = random.random(500) < 0.5
    expected = 0.0
    for i in range(BINS):
        members = (confidences >= i / BINS) & (confidences < (i + 1) / BINS)
        expected += abs(is_right[members].sum() - confidences[members].sum()) / 500
    assert calibration_error(confidences, is_right) == pytest.approx(expected)


def test_perfect_probabilities_have_no_calibration_error():
    random = np.random.default_rng(0)
    confidences = random.random(200_000)
    is_right = random.random(200_000) < confidences
    assert calibration_error(confidences, is_right) < 0.01


def test_intervals_resample_sentences_with_all_of_their_items():
    features, is_right = sample(300, WEIGHTS)
    confidences = probabilities(WEIGHTS, features)
    alone = measure(confidences, is_right)
    assert alone["auc_interval"][0] < alone["auc"] < alone["auc_interval"][1]
    assert (alone["items"], alone["right"]) == (300, is_right.mean())
    # Copies within a sentence add no information, so the interval stays the same.
    sentences = np.repeat(np.arange(300), 4)
    copies = measure(np.repeat(confidences, 4), np.repeat(is_right, 4), sentences)
    assert copies["auc"] == pytest.approx(alone["auc"])
    assert copies["auc_interval"] == pytest.approx(alone["auc_interval"])
    # As sentences of their own they do.
    independent = measure(np.repeat(confidences, 4), np.repeat(is_right, 4))
    widths = [np.ptp(one["auc_interval"]) for one in (alone, independent)]
    assert widths[1] == pytest.approx(widths[0] / 2, rel=0.2)


def test_measures_without_wrong_items_have_no_auc():
    measures = measure(np.array([0.9, 0.8]), np.array([True, True]))
    assert measures["auc"] is None and measures["auc_interval"] is None
    assert measures["calibration_error"] == pytest.approx(0.15)
