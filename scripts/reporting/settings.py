"""The configurations of runs side by side."""

from collections.abc import Sequence
from typing import NamedTuple

from scripts.evaluations import NEUTRAL, differing_keys
from scripts.reporting.runs import Run
from scripts.reporting.section import Section
from transformer.config.keys import flatten, keys_of, show


class Setting(NamedTuple):
    """A key with its value in each run."""

    key: str
    values: tuple[str, ...]
    differs: bool


def settings(runs: Sequence[Run]) -> list[Setting]:
    """Returns all keys but those that do not change what a run computes. Those in which the runs differ come first."""
    neutral = keys_of(*NEUTRAL)
    each = [{key: value for key, value in flatten(run.config).items() if key not in neutral} for run in runs]
    differing = differing_keys(each)
    rows = [Setting(key, tuple(show(values.get(key)) for values in each), key in differing) for key in each[0]]
    return sorted(rows, key=lambda row: not row.differs)


def section(runs: Sequence[Run]) -> Section:
    rows = settings(runs)
    differing = [row for row in rows if row.differs]
    content = {
        "labels": [run.label for run in runs],
        "differing": [(row.key, *row.values) for row in differing],
        "common": [(row.key, row.values[0]) for row in rows[len(differing) :]],
    }
    return Section("settings", "Settings", content)
