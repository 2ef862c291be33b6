"""The runs that a report shows: what their workdirs hold."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.evaluations import Evaluation, distinct_names, read_evaluations
from transformer.checkpoints.restore import steps_in
from transformer.config_types import Config
from transformer.environment import read_environment
from transformer.run.record import read_record
from transformer.training.metrics import Record
from transformer.workdir import Workdir, open_all


@dataclass(frozen=True, eq=False)
class Run:
    """A run, complete or not.

    label: its name on the page, different for each run.
    """

    label: str
    workdir: Workdir
    config: Config

    @functools.cached_property
    def environment(self) -> dict[str, Any]:
        return read_environment(self.workdir.environment) or {}

    @functools.cached_property
    def record(self) -> list[Record]:
        return read_record(self.workdir.metrics)

    @functools.cached_property
    def evaluations(self) -> list[Evaluation]:
        return read_evaluations(self.workdir)

    @property
    def has_checkpoint(self) -> bool:
        return bool(steps_in(self.workdir.checkpoints))

    @property
    def best_step(self) -> int | None:
        """The step of the best validation in the record, by `checkpoint.best_metric`; None if there is none."""
        metric = self.config.checkpoint.best_metric
        scored = [line for line in self.record if line["split"] == "valid" and metric in line]
        best = min if metric == "loss" else max
        return best(scored, key=lambda line: line[metric])["step"] if scored else None

    @property
    def step(self) -> int:
        """The last step in the record; 0 if there is none."""
        return max((line["step"] for line in self.record), default=0)


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Opens the runs. Raises UserError if one is not a workdir, or is given twice."""
    return [Run(label, *opened) for label, opened in zip(distinct_names(paths), open_all(paths), strict=True)]
