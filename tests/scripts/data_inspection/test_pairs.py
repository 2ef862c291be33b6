"""Measures of sentence pairs, by hand and by the model's own scores."""

import math

import pytest

import transformer
from scripts.data_inspection.pairs import Measured, copied, length_ratio, measure
from tests.checkpoints.workdirs import make_workdir

PAIRS = [("1 2 3", "3 2 1"), ("4", ""), ("5 6", "6 " * 40), ("7 7", "7 5")]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspected")
    return [transformer.load(make_workdir(folder / str(seed), seed=seed)) for seed in range(2)]


@pytest.mark.parametrize(
    ("source", "target", "ratio"), [("a b", "c d e", 1.5), ("a b c", "d", 3.0), ("a", "", math.inf), ("", "", 1.0)]
)
def test_length_ratio(source, target, ratio):
    assert length_ratio(source, target) == length_ratio(target, source) == ratio


@pytest.mark.parametrize(
    ("source", "target", "share"),
    [("a b c", "a b c", 1.0), ("a b", "a a a a", 0.25), ("a", "b", 0.0), ("a", "", 0.0)],
)
def test_copied(source, target, share):
    assert copied(source, target) == share


def test_losses_are_the_models_scores_per_token(models):
    model, reverse = models
    measured = list(measure(PAIRS, model, reverse))
    assert [(each.number, each.source, each.target) for each in measured] == [
        (number, *pair) for number, pair in enumerate(PAIRS, start=1)
    ]
    for each in (measured[0], measured[1], measured[3]):
        (score,) = model.score([(each.source, each.target)])
        (back,) = reverse.score([(each.target, each.source)])
        assert each.loss == pytest.approx(-score.log_probability / len(score.tokens), rel=1e-5)
        assert each.reverse_loss == pytest.approx(-back.log_probability / len(back.tokens), rel=1e-5)
        assert each.mean_loss == pytest.approx((each.loss + each.reverse_loss) / 2)
    assert math.isnan(measured[2].loss) and measured[2].mean_loss == -math.inf
    assert [each.reverse_loss for each in measure(PAIRS, model, None)] == [None] * 4


def test_the_mean_without_another_direction_is_the_loss():
    assert Measured(1, "a", "b", 2.5, None, 1.0, 0.0).mean_loss == 2.5
