"""Descriptions of sweeps, and the errors for invalid ones."""

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from scripts.sweeping.description import extremes, listed, product, search, seeds, zipped
from transformer.support.errors import UserError


def random(seed: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.RandomSampler(seed=seed)


class Late(optuna.samplers.RandomSampler):
    """A sampler that needs a missing package after ten trials."""

    def sample_independent(self, study, *arguments):
        if len(study.trials) > 10:
            raise ModuleNotFoundError("No module named 'torch'")
        return super().sample_independent(study, *arguments)


def search_by(sampler, trials: int = 20):
    return search(
        {"a": FloatDistribution(0, 1)}, trials=trials, objective="nll", sampler=sampler, pruner=None
    )


def test_a_sampler_is_accepted_if_it_can_draw_all_trials():
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
def test_the_distribution_of_a_key_spans_its_listed_values(values, expected):
    sweep = listed(product({"key": values}), objective="bleu", pruner=None)
    assert sweep.distributions(0)["key"] == expected


def test_all_trials_of_a_search_have_the_same_space():
    sweep = search(
        {"a": FloatDistribution(0, 1)}, trials=3, objective="loss", sampler=random, pruner=None
    )
    assert [sweep.distributions(trial) for trial in range(3)] == [
        {"a": FloatDistribution(0, 1)}
    ] * 3


def test_extremes_are_bounds_or_choices():
    assert extremes(FloatDistribution(1e-4, 1e-2, log=True)) == [1e-4, 1e-2]
    assert extremes(IntDistribution(2, 6, step=2)) == [2, 6]
    assert extremes(CategoricalDistribution(["a", None])) == ["a", None]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: product({"a": [1]}, {"a": [2]}), "a key is in two of the parts"),
        (
            lambda: listed(product({"a": []}), objective="bleu", pruner=None),
            "no trials; give every key",
        ),
        (lambda: listed([{"a": 1}], objective="bleu", pruner="median"), "pruner cannot be used"),
        (
            lambda: listed([{"a": ("x", "y")}], objective="bleu", pruner=None),
            r"^\('x', 'y'\): a sweep takes numbers",
        ),
        (lambda: search_by(random(0)), "sampler or pruner cannot be used; TypeError"),
        (lambda: search_by(Late), "cannot be used; ModuleNotFoundError: No module named 'torch'"),
        (
            lambda: search_by(lambda seed: optuna.samplers.GridSampler({"a": [0, 1]})),
            "tries every combination",
        ),
        (
            lambda: search_by(lambda seed: optuna.samplers.BruteForceSampler(seed)),
            "tries every combination.*listed",
        ),
        (
            lambda: search({"a": [1, 2]}, trials=1, objective="bleu", sampler=random, pruner=None),
            "cannot be used",
        ),
        (lambda: search_by(random, trials=0), "no trials"),
    ],
)
def test_invalid_descriptions_are_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()
