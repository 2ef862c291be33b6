"""What a sweep file can say, and what it is told when it says something impossible."""

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from scripts.sweeping.description import (
    choices,
    corners,
    integers,
    listed,
    log_uniform,
    product,
    search,
    seeds,
    uniform,
    zipped,
)
from transformer.errors import UserError


def random(seed: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.RandomSampler(seed=seed)


class Late(optuna.samplers.RandomSampler):
    """Needs, after the first trials, what is not installed."""

    def sample_independent(self, study, *arguments):
        if len(study.trials) > 10:
            raise ModuleNotFoundError("No module named 'torch'")
        return super().sample_independent(study, *arguments)


def search_by(sampler, trials: int = 20):
    return search({"a": uniform(0, 1)}, trials=trials, objective="nll", sampler=sampler, pruner=None)


def test_a_sampler_that_is_never_asked_for_what_it_cannot_do_is_let_be():
    assert len(search_by(Late, trials=10).trials) == 10


def test_a_product_has_every_combination_and_the_last_varies_fastest():
    trials = product({"a": [1, 2], "b": ["x"]}, zipped({"c": [3, 4], "d": [5, 6]}), seeds(2))
    assert trials[:3] == [
        {"a": 1, "b": "x", "c": 3, "d": 5, "seed": 0},
        {"a": 1, "b": "x", "c": 3, "d": 5, "seed": 1},
        {"a": 1, "b": "x", "c": 4, "d": 6, "seed": 0},
    ]
    assert len(trials) == 8


def test_listed_trials_may_have_different_keys():
    sweep = listed([{"a": 1}, {"b": 0.5}], objective="bleu", pruner=None)
    assert sweep.keys == ["a", "b"]
    assert list(sweep.distributions(1)) == ["b"]
    assert sweep.direction == "maximize"
    assert listed([{"a": 1}], objective="nll", pruner=None).direction == "minimize"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([4, 2, 8], IntDistribution(2, 8)),
        ([0, 0.1], FloatDistribution(0, 0.1)),
        ([True, False], CategoricalDistribution([True, False])),
        (["adam", "muon"], CategoricalDistribution(["adam", "muon"])),
        ([None, 64], CategoricalDistribution([None, 64])),
    ],
)
def test_what_is_listed_of_a_key_spans_its_distribution(values, expected):
    sweep = listed(product({"key": values}), objective="bleu", pruner=None)
    assert sweep.distributions(0)["key"] == expected


def test_a_search_has_the_same_space_for_each_of_its_trials():
    sweep = search({"a": uniform(0, 1)}, trials=3, objective="loss", sampler=random, pruner=None)
    assert [sweep.distributions(trial) for trial in range(3)] == [{"a": FloatDistribution(0, 1)}] * 3


def test_corners_are_bounds_or_choices():
    assert corners(log_uniform(1e-4, 1e-2)) == [1e-4, 1e-2]
    assert corners(integers(2, 7, step=2)) == [2, 6]
    assert corners(choices("a", None)) == ["a", None]


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: zipped({"a": [1, 2], "b": [1]}), "a has 2 values, b has 1 values"),
        (lambda: product({"a": []}), "a: has no values"),
        (lambda: product({"a": "xy"}), "a: must be a list"),
        (lambda: product({"a": [1]}, {"a": [2]}), "a is varied by two"),
        (lambda: product({"a": [(1, 2)]}), "numbers, text, true or false, and None"),
        (lambda: product([]), "list of trials is empty"),
        (lambda: seeds(0), r"seeds\(0\)"),
        (lambda: log_uniform(0, 1), "must be above 0"),
        (lambda: uniform(2, 1), "the lower one first"),
        (lambda: uniform(0, float("inf")), "finite"),
        (lambda: integers(1, 4, step=0), "step must be at least 1"),
        (lambda: choices(), "at least one"),
        (lambda: listed([], objective="bleu", pruner=None), "empty"),
        (lambda: listed([{"a": 1}, {"a": 1}], objective="bleu", pruner=None), "trials 0 and 1 are the same: a=1"),
        (lambda: listed([{"a": 1}], objective="blue", pruner=None), "objective=blue"),
        (lambda: listed([{"a": 1}], objective="bleu", pruner="median"), "pruner"),
        (lambda: search({"a": uniform(0, 1)}, trials=1, objective="nll", sampler=random(0), pruner=None), "sampler"),
        (lambda: search_by(Late), "Late cannot choose from this space; ModuleNotFoundError: No module named 'torch'"),
        (lambda: search_by(lambda seed: optuna.samplers.GridSampler({"a": [0, 1]})), "GridSampler goes through a list"),
        (lambda: search_by(lambda seed: optuna.samplers.BruteForceSampler(seed)), "BruteForceSampler.*listed"),
        (lambda: search({}, trials=1, objective="bleu", sampler=random, pruner=None), "space is empty"),
        (lambda: search({"a": [1, 2]}, trials=1, objective="bleu", sampler=random, pruner=None), "a: must be"),
        (lambda: search({"a": uniform(0, 1)}, trials=0, objective="bleu", sampler=random, pruner=None), "trials=0"),
    ],
)
def test_what_cannot_be_says_why(make, message):
    with pytest.raises(UserError, match=message):
        make()
