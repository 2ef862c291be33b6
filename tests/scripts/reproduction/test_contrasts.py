"""Contrasts of rows: values, errors and p-values worked out by hand, and the rate of false
positives.
"""

import math

import numpy as np
import pytest

from scripts.reproduction.claims import Contrast, estimate, per_doubling, versus


@pytest.mark.parametrize(
    ("t", "freedom", "tail"),
    # From a table of Student's t. With one degree of freedom it is Cauchy: 1/2 - arctan(t) / pi.
    [
        (1.0, 1, 0.25),
        (2.920, 2, 0.05),
        (1.812, 10, 0.05),
        (2.145, 14, 0.025),
        (-1.812, 10, 0.95),
        (0.0, 5, 0.5),
    ],
)
def test_p_values_are_those_of_student(t, freedom, tail):
    assert Contrast(t, 1.0, freedom).p_above(0.0) == pytest.approx(tail, abs=2e-4)
    assert Contrast(t, 1.0, freedom).p_below(0.0) == pytest.approx(1 - tail, abs=2e-4)


def test_two_rows_give_the_two_sample_t_test():
    contrast = estimate(per_doubling(versus("a", "b")), {"a": [1.0, 2.0, 3.0], "b": [4.0, 6.0]})
    # Sums of squares 2 and 2, three degrees of freedom: s^2 = 4/3, and the error is sqrt(4/3 (1/3 +
    # 1/2)).
    assert (contrast.value, contrast.freedom) == (-3.0, 3)
    assert contrast.error == pytest.approx(math.sqrt(10 / 9))


def test_a_row_with_one_seed_borrows_the_spread_of_the_others():
    scores = {"a": [1.0, 3.0], "b": [5.0], "c": [0.0, 4.0, 2.0]}
    contrast = estimate(per_doubling(versus("b", "a")), scores)
    assert (contrast.value, contrast.freedom) == (3.0, 3)
    assert contrast.error == pytest.approx(math.sqrt((2 + 8) / 3 * (1 + 1 / 2)))


def test_without_any_second_seed_nothing_is_significant():
    contrast = estimate(per_doubling(versus("a", "b")), {"a": [1.0], "b": [9.0]})
    assert (
        contrast.value,
        contrast.p_above(0.0),
        contrast.p_below(0.0),
        contrast.p_within(100.0),
    ) == (
        -8.0,
        1.0,
        1.0,
        1.0,
    )


def test_a_slope_is_the_change_for_each_doubling():
    assert per_doubling({"a": 16, "b": 32, "c": 64}) == {"a": -0.5, "b": 0.0, "c": 0.5}
    sizes = {"a": 2, "b": 4, "c": 6, "d": 8}
    line = {row: [10 + 3 * math.log2(size)] for row, size in sizes.items()}
    assert estimate(per_doubling(sizes), line).value == pytest.approx(3.0)


def test_equivalence_needs_both_sides():
    assert Contrast(0.0, 0.1, 10).p_within(0.5) == pytest.approx(
        Contrast(0.5, 0.1, 10).p_above(0.0)
    )
    assert Contrast(0.45, 0.1, 10).p_within(0.5) > 0.05
    assert Contrast(0.0, 0.5, 10).p_within(0.5) > 0.05  # too noisy to say


def test_false_positives_are_as_frequent_as_the_level():
    random = np.random.default_rng(0)
    sizes = {"a": 3, "b": 1, "c": 3, "d": 1}
    trials = 400
    rejected = 0
    for _ in range(trials):
        scores = {row: random.normal(size=count).tolist() for row, count in sizes.items()}
        rejected += estimate(per_doubling(versus("a", "b")), scores).p_above(0.0) < 0.05
    assert abs(rejected / trials - 0.05) < 0.03
