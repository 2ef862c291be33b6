"""Measures of sentence pairs, by hand and by the model's own scores."""

import math

import pytest

import transformer
from scripts.pair_measures import copied, length_ratio, measure
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


def test_scores_are_those_of_the_models_per_token(models):
    (model, reverse), reported = models, []
    measured = list(measure(PAIRS, model, reverse, reported.append))
    assert [(pair.number, pair.source, pair.target) for pair in measured] == [
        (number, *pair) for number, pair in enumerate(PAIRS, start=1)
    ]
    for pair in (measured[0], measured[1], measured[3]):
        texts = (pair.source, pair.target)
        for scores, scorer, (source, target) in zip(pair.scores, models, (texts, texts[::-1]), strict=True):
            one, without = scorer.score([(source, target), ("", target)])
            assert scores.loss == pytest.approx(-one.log_probability / len(one.tokens), rel=1e-5)
            gain = one.log_probability - without.log_probability
            assert scores.pmi == pytest.approx(gain / len(one.tokens), rel=1e-4, abs=1e-6)
        assert pair.pmi == pytest.approx(sum(scores.pmi for scores in pair.scores) / 2)
    assert math.isnan(measured[2].pmi)
    assert [len(pair.scores) for pair in measure(PAIRS, model, None, reported.append)] == [1] * 4
    assert reported == [4, 4]


def test_an_empty_source_has_no_mutual_information(models):
    (measured,) = measure([("", "1 2")], models[0], None, lambda count: None)
    assert measured.pmi == 0.0
