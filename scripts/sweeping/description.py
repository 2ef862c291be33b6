"""Descriptions of sweeps: the trials, the objective and the pruner.

A sweep file defines `get_sweep(sweep)`, where `sweep` is this module. The function returns
`sweep.listed(...)` or `sweep.search(...)`. Keys are written with their group, such as
"optimizer.learning_rate". Listed trials are dictionaries, which `product`, `zipped` and `seeds`
make:

    product(
        {"model.dropout": [0.1, 0.3]},
        zipped({"model.d_model": [256, 512], "model.d_ff": [1024, 2048]}),
        seeds(3),
    )

is 12 trials.
"""

import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler, BruteForceSampler, GridSampler, RandomSampler

from transformer.config import loading
from transformer.decoding.metrics import direction
from transformer.support.errors import UserError

Value = None | bool | int | float | str  # the values that Optuna's storages hold
Values = dict[str, Value]
# More than the random trials before the samplers' own: TPE has 10, CMA-ES 1 and GP 10.
DRY_RUN_TRIALS = 12


class Sweep(NamedTuple):
    """The trials of a sweep.

    Attributes:
      trials: the listed values of each trial; empty dictionaries for a search.
      space: the distributions from which a sampler draws the values of a search; empty for listed
          trials.
      objective: the validation metric to optimize.
      sampler: a function from a seed to a sampler for `space`.
      pruner: stops trials whose objective falls behind; None finishes every trial.
    """

    trials: tuple[Values, ...]
    space: dict[str, BaseDistribution]
    objective: str
    sampler: Callable[[int], BaseSampler]
    pruner: BasePruner | None

    @property
    def direction(self) -> str:
        """The direction of the objective, as Optuna names it."""
        return direction(self.objective)

    @property
    def best(self) -> Callable:
        """`max` or `min`, by the direction of the objective."""
        return max if self.direction == "maximize" else min

    @property
    def keys(self) -> list[str]:
        """The varied keys, in the order of the sweep file."""
        return list(dict.fromkeys(itertools.chain(*self.trials, self.space)))

    def distribution(self, key: str) -> BaseDistribution:
        """Returns the distribution of a varied key.

        The distribution of a listed key spans its values.
        """
        if self.space:
            return self.space[key]
        return _span([values[key] for values in self.trials if key in values])

    def distributions(self, trial: int) -> dict[str, BaseDistribution]:
        """Returns a distribution for every key of the trial."""
        return {key: self.distribution(key) for key in self.space or self.trials[trial]}


def listed(
    trials: Sequence[Mapping[str, Value]], *, objective: str, pruner: BasePruner | None
) -> Sweep:
    """Returns a sweep of these trials."""
    trials = tuple(map(dict, trials))
    # Equal values would train the same model twice.
    for number, values in enumerate(trials):
        first = trials.index(values)
        if first < number:
            raise UserError(
                f"trial {number}: has the values of trial {first}, {values}; "
                "list it once, or vary the seed"
            )
    return _check(Sweep(trials, {}, objective, RandomSampler, pruner))


def search(
    space: Mapping[str, BaseDistribution],
    *,
    trials: int,
    objective: str,
    sampler: Callable[[int], BaseSampler],
    pruner: BasePruner | None,
) -> Sweep:
    """Returns a sweep in which a sampler chooses the values from the results of earlier trials.

    `space` has a distribution of Optuna for each key, such as `FloatDistribution(1e-4, 1e-2,
    log=True)`. An example of `sampler` is `lambda seed: optuna.samplers.TPESampler(seed=seed)`.
    Every trial has its own seed, so that neither a restart nor another machine draws the same
    values again.
    """
    return _check(Sweep(({},) * trials, dict(space), objective, sampler, pruner))


def product(*parts: Mapping[str, Sequence[Value]] | Sequence[Mapping[str, Value]]) -> list[Values]:
    """Returns all combinations of the parts. The last part varies fastest.

    A part is a list of trials, or maps each of its keys to a list of values. Raises UserError if
    two parts have the same key.
    """
    # Each list is an axis of the grid.
    axes = []
    for part in parts:
        if isinstance(part, Mapping):
            axes += [zipped({key: values}) for key, values in part.items()]
        else:
            axes.append(part)

    combinations = []
    for choice in itertools.product(*axes):
        # A key in two of the trials would silently take the last value.
        merged = {key: value for values in choice for key, value in values.items()}
        if len(merged) < sum(map(len, choice)):
            raise UserError("product: a key is in two of the parts; name each key once")
        combinations.append(merged)
    return combinations


def zipped(table: Mapping[str, Sequence[Value]]) -> list[Values]:
    """Returns one trial with the first value of each key, one with the second values, and so on."""
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def seeds(count: int) -> list[Values]:
    """Returns trials that differ only in their seed: 0, 1, ..."""
    return [{"seed": seed} for seed in range(count)]


def load_sweep(name: str) -> Sweep:
    """Returns the sweep of a sweep file. Raises UserError if the file is missing or invalid."""
    path = loading.find_file("--sweep", name)
    sweep = loading.call_function(path, "get_sweep", sys.modules[__name__])
    if not isinstance(sweep, Sweep):
        name = type(sweep).__name__
        raise UserError(
            f"--sweep={path}: get_sweep() returned {name}, "
            "must return sweep.listed() or sweep.search()"
        )
    return sweep


def extremes(distribution: BaseDistribution) -> list[Value]:
    """Returns the values that a configuration must accept: every choice, or the bounds."""
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    return [distribution.low, distribution.high]


def _check(sweep: Sweep) -> Sweep:
    """Returns the sweep, after a dry run of a few trials in memory.

    Some samplers notice that a package is missing only after several trials. Raises UserError if
    the sweep is invalid.
    """
    if not sweep.trials:
        raise UserError("the sweep has no trials; give every key at least one value")

    # Optuna's storages hold scalars only.
    values = [value for trial in sweep.trials for value in trial.values()]
    for distribution in sweep.space.values():
        values += getattr(distribution, "choices", ())
    for value in values:
        if not isinstance(value, Value):
            raise UserError(
                f"{value!r:.60}: a sweep takes numbers, text, true, false and None; "
                "make a config of each"
            )

    # Ask for the trials as `SweepStudy.claim` does, with a made-up objective.
    try:
        sampler = sweep.sampler(0)
        if isinstance(sampler, GridSampler | BruteForceSampler):
            raise ValueError("it tries every combination; use listed(product(...)) instead")
        study = optuna.create_study(sampler=sampler, pruner=sweep.pruner)
        for number in range(min(len(sweep.trials), DRY_RUN_TRIALS)):
            trial = study.ask(sweep.distributions(number))
            trial.report(0.0, step=1)
            trial.should_prune()
            study.tell(trial, float(number))
    except Exception as error:
        raise UserError(
            f"the sampler or pruner cannot be used; {type(error).__name__}: {error}"
        ) from error
    return sweep


def _span(values: Sequence[Value]) -> BaseDistribution:
    """Returns a range if the values are numbers, and choices otherwise.

    Optuna's plots and importances treat a range as numeric.
    """
    # `type` and not isinstance: booleans are choices.
    types = {type(value) for value in values}
    if types == {int}:
        return IntDistribution(min(values), max(values))
    if types <= {int, float} and all(math.isfinite(value) for value in values):
        return FloatDistribution(min(values), max(values))
    return CategoricalDistribution(list(dict.fromkeys(values)))
