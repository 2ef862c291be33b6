"""What a sweep file says: which keys vary, what is sought, and when a trial is given up.

A sweep file defines `get_sweep(sweep)`, whose argument is this module, and returns `sweep.listed(...)` or
`sweep.search(...)`. Keys are written with their group, "optimizer.learning_rate". Listed trials are dictionaries, which
`product`, `zipped` and `seeds` make:

    product({"model.dropout": [0.1, 0.3]}, zipped({"model.d_model": [256, 512], "model.d_ff": [1024, 2048]}), seeds(3))

is 12 trials.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler, BruteForceSampler, GridSampler, RandomSampler
from optuna.storages import InMemoryStorage
from optuna.trial import Trial

from transformer.config.keys import show
from transformer.errors import UserError

Value = None | bool | int | float | str  # what Optuna's storages hold
Values = dict[str, Value]
MAXIMIZED = ("bleu", "chrf", "bleu_lowercase_tokenized", "accuracy", "exact_match")
MINIMIZED = ("loss", "nll", "perplexity")
REHEARSED = 12  # trials of a search: by default samplers draw the first 10 at random


@dataclass(frozen=True)
class Sweep:
    """Attributes:
    trials: what each trial sets by listing, in order.
    space: where an Optuna sampler chooses the other keys of every trial; empty if all is listed.
    objective: the validation metric that is sought.
    sampler: called with a seed; it makes what chooses from `space`.
    pruner: gives up trials whose objective falls behind the others'; None: every trial is finished.
    """

    trials: tuple[Values, ...]
    space: dict[str, BaseDistribution]
    objective: str
    sampler: Callable[[int], BaseSampler]
    pruner: BasePruner | None

    @property
    def direction(self) -> str:
        return "maximize" if self.objective in MAXIMIZED else "minimize"

    @property
    def best(self) -> Callable:
        """`max` or `min`: what finds the best of several values."""
        return max if self.direction == "maximize" else min

    @property
    def keys(self) -> list[str]:
        """All that vary, in the order in which the file names them."""
        return list(dict.fromkeys(key for values in (*self.trials, self.space) for key in values))

    def distributions(self, trial: int) -> dict[str, BaseDistribution]:
        """For Optuna: of every key that the trial has. A listed key spans what is listed for it."""
        listed = {key: _span([values[key] for values in self.trials if key in values]) for key in self.trials[trial]}
        return listed | self.space


def listed(trials: Sequence[Mapping[str, Value]], *, objective: str, pruner: BasePruner | None) -> Sweep:
    """A sweep of just these trials. Raises UserError if there are none, or one is there twice."""
    trials = _part(trials)
    for number, values in enumerate(trials):
        if values in trials[:number]:
            raise UserError(f"trials {trials.index(values)} and {number} are the same: {_describe(values)}")
    return _checked(Sweep(tuple(trials), {}, objective, lambda seed: RandomSampler(seed), pruner))


def search(
    space: Mapping[str, BaseDistribution],
    *,
    trials: int,
    objective: str,
    sampler: Callable[[int], BaseSampler],
    pruner: BasePruner | None,
) -> Sweep:
    """A sweep of so many trials that a sampler chooses one after the other, learning from those that are done.

    Args:
      space: of each key, as `log_uniform`, `uniform`, `integers` and `choices` make it.
      sampler: such as `lambda seed: optuna.samplers.TPESampler(seed=seed)`; each trial has a seed of its own.
    """
    if not space:
        raise UserError("search: the space is empty; give at least one key")
    if trials < 1:
        raise UserError(f"search: trials={trials}, must be at least 1")
    for key, distribution in space.items():
        if not isinstance(distribution, BaseDistribution):
            raise UserError(f"{key}: must be log_uniform(...), uniform(...), integers(...) or choices(...)")
    if not callable(sampler) or not isinstance(sampler(0), BaseSampler):
        raise UserError("search: sampler must make one of Optuna's samplers from a seed, such as lambda seed: ...")
    sweep = _checked(Sweep(({},) * trials, dict(space), objective, sampler, pruner))
    _rehearse(sweep)
    return sweep


def _rehearse(sweep: Sweep) -> None:
    """Has the sampler choose a few trials in memory. Raises UserError if it cannot, as some do only after a while."""
    first = sweep.sampler(0)
    name = type(first).__name__
    if isinstance(first, GridSampler | BruteForceSampler):
        raise UserError(f"search: {name} goes through a list; make it by listed(product(...)) instead")
    storage = InMemoryStorage()
    study = optuna.create_study(storage=storage, direction=sweep.direction)
    study_id = storage.get_study_id_from_name(study.study_name)
    try:
        for number in range(min(len(sweep.trials), REHEARSED)):
            study.sampler = sweep.sampler(number)
            trial = Trial(study, storage.create_new_trial(study_id))
            for key, distribution in sweep.space.items():
                suggest(trial, key, distribution)
            study.tell(trial, float(number))
    except Exception as error:
        raise UserError(f"search: {name} cannot choose from this space; {type(error).__name__}: {error}") from error


def product(*parts: Mapping[str, Sequence[Value]] | Sequence[Mapping[str, Value]]) -> list[Values]:
    """Every combination. A part is a table of keys and their values, or a list of trials; the last varies fastest."""
    axes: list[list[Values]] = []
    for part in parts:
        axes += [_values(key, values) for key, values in part.items()] if isinstance(part, Mapping) else [_part(part)]
    combined = []
    for choice in itertools.product(*axes):
        merged: Values = {}
        for values in choice:
            if twice := merged.keys() & values.keys():
                raise UserError(f"product: {min(twice)} is varied by two of its parts; name each key once")
            merged |= values
        combined.append(merged)
    return combined


def zipped(table: Mapping[str, Sequence[Value]]) -> list[Values]:
    """The first value of every key, then the second, and so on. Raises UserError if one has more than another."""
    columns = [_values(key, values) for key, values in table.items()]
    lengths = {key: len(column) for key, column in zip(table, columns, strict=True)}
    if len(set(lengths.values())) > 1:
        raise UserError(f"zipped: {', '.join(f'{key} has {n} values' for key, n in lengths.items())}; give all as many")
    return [{key: value for values in row for key, value in values.items()} for row in zip(*columns, strict=True)]


def seeds(count: int) -> list[Values]:
    """Trials that differ in nothing but their seed, from 0 on."""
    if count < 1:
        raise UserError(f"seeds({count}): must be at least 1")
    return [{"seed": seed} for seed in range(count)]


def log_uniform(low: float, high: float) -> FloatDistribution:
    """Numbers whose logarithm is uniform between those of the bounds, both of which can be drawn."""
    _check_bounds("log_uniform", low, high)
    if low <= 0:
        raise UserError(f"log_uniform({low}, {high}): the lower bound must be above 0")
    return FloatDistribution(low, high, log=True)


def uniform(low: float, high: float) -> FloatDistribution:
    _check_bounds("uniform", low, high)
    return FloatDistribution(low, high)


def integers(low: int, high: int, step: int) -> IntDistribution:
    """low, low + step, ... up to `high` at most."""
    _check_bounds("integers", low, high)
    if step < 1:
        raise UserError(f"integers({low}, {high}, {step}): the step must be at least 1")
    return IntDistribution(low, low + (high - low) // step * step, step=step)


def choices(*values: Value) -> CategoricalDistribution:
    if not values:
        raise UserError("choices(): give at least one value")
    return CategoricalDistribution([_checked_value("choices", value) for value in values])


def suggest(trial: Trial, key: str, distribution: BaseDistribution) -> Value:
    """What the study's sampler chooses for the key, or what the trial has of it already."""
    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(key, distribution.choices)
    choose = trial.suggest_float if isinstance(distribution, FloatDistribution) else trial.suggest_int
    return choose(key, distribution.low, distribution.high, step=distribution.step, log=distribution.log)


def corners(distribution: BaseDistribution) -> list[Value]:
    """The values that say whether all can be had: the bounds, or every choice."""
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    return [distribution.low, distribution.high]


def _check_bounds(name: str, low: float, high: float) -> None:
    if not (low <= high and math.isfinite(low) and math.isfinite(high)):
        raise UserError(f"{name}({low}, {high}): needs two finite numbers, the lower one first")


def _values(key: str, values: Sequence[Value]) -> list[Values]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise UserError(f"{key}: must be a list of values, is {values!r}")
    if not values:
        raise UserError(f"{key}: has no values; give at least one")
    return [{key: _checked_value(key, value)} for value in values]


def _checked_value(key: str, value: Any) -> Value:
    if not isinstance(value, None | bool | int | float | str):
        raise UserError(f"{key}={value!r}: a sweep varies numbers, text, true or false, and None")
    return value


def _part(trials: Sequence[Mapping[str, Value]]) -> list[Values]:
    if not isinstance(trials, Sequence) or not all(isinstance(values, Mapping) and values for values in trials):
        raise UserError(f"{trials!r}: must be a list of trials, each a table of its keys and values")
    if not trials:
        raise UserError("the list of trials is empty; give at least one")
    return [{key: _checked_value(key, value) for key, value in values.items()} for values in trials]


def _checked(sweep: Sweep) -> Sweep:
    if sweep.objective not in MAXIMIZED + MINIMIZED:
        raise UserError(f"objective={sweep.objective}: must be one of {', '.join(MAXIMIZED + MINIMIZED)}")
    if sweep.pruner is not None and not isinstance(sweep.pruner, BasePruner):
        raise UserError("pruner: must be one of Optuna's pruners, or None")
    return sweep


def _span(values: Sequence[Value]) -> BaseDistribution:
    """Numbers are an axis in plots and importances; anything else is a choice."""
    kinds = {type(value) for value in values}
    if kinds == {int}:
        return IntDistribution(min(values), max(values))
    if kinds <= {int, float} and all(math.isfinite(value) for value in values):
        return FloatDistribution(min(values), max(values))
    return CategoricalDistribution(list(dict.fromkeys(values)))


def _describe(values: Values) -> str:
    return ", ".join(f"{key}={show(value)}" for key, value in values.items())
