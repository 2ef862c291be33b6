"""Runs, complete or not, as reports and figures read them from their workdirs."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformer.checkpoints.restore import steps_in
from transformer.config.types import Config
from transformer.decoding.bleu import rank
from transformer.run.record import read_record
from transformer.support.errors import UserError
from transformer.training.progress import Record
from transformer.workdir import Workdir, open_existing


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """The workdir of a run. Labels of runs that are shown together differ."""

    label: str
    workdir: Workdir
    config: Config

    @functools.cached_property
    def record(self) -> list[Record]:
        return read_record(self.workdir.metrics)

    @property
    def has_checkpoint(self) -> bool:
        return bool(steps_in(self.workdir.checkpoints))

    @property
    def best_step(self) -> int | None:
        """The step of the best validation in the record, by `checkpoint.best_metric`; None if there
        is none.
        """
        best = best_validation(self.record, self.config.checkpoint.best_metric)
        return best and best["step"]


def best_validation(record: Sequence[Record], metric: str) -> Record | None:
    """Returns the line of the best validation by the metric, as training chooses it; None if there
    is none.
    """
    scored = [line for line in record if line["split"] == "valid" and metric in line]
    return max(scored, key=lambda line: rank(line[metric], line["loss"], metric), default=None)


def training_seconds(record: Sequence[Record]) -> float:
    """Returns the time of a run over all its starts, validations included; 0 for an imported model."""
    return max((line["seconds"] for line in record if "seconds" in line), default=0.0)


def read_runs(paths: Sequence[Path], flag: str = "--workdir") -> list[RecordedRun]:
    """Opens the runs, labelled with distinct ends of their paths.

    Raises UserError, with the flag, if one is none.
    """
    resolved = [path.resolve() for path in paths]
    if repeated := [path for path in paths if resolved.count(path.resolve()) > 1]:
        raise UserError(f"{flag}={repeated[1]}: is given twice; give it once")
    for length in range(1, max(len(path.parts) for path in resolved) + 1):
        labels = ["/".join(path.parts[-length:]) for path in resolved]
        if len(set(labels)) == len(labels):
            break
    return [
        RecordedRun(label, *open_existing(path, flag))
        for label, path in zip(labels, paths, strict=True)
    ]
