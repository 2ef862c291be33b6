"""Runs, as reports and figures read them from workdirs. They need not be complete."""

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
    """A run with its workdir. Runs that are shown together have different labels."""

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
        """The step of the best validation by `checkpoint.best_metric`; None without validations."""
        best = best_validation(self.record, self.config.checkpoint.best_metric)
        return best and best["step"]


def best_validation(record: Sequence[Record], metric: str) -> Record | None:
    """Returns the line of the best validation, as training chooses it; None without validations."""
    # Validations without decoding lack the metric, if it is BLEU for example.
    lines = [line for line in record if line["split"] == "valid" and metric in line]
    return max(lines, key=lambda line: rank(line[metric], line["loss"], metric), default=None)


def training_seconds(record: Sequence[Record]) -> float:
    """Returns the time of a run over all its starts, with validations; 0 for an imported model."""
    return max((line["seconds"] for line in record if "seconds" in line), default=0.0)


def read_runs(paths: Sequence[Path], flag: str = "--workdir") -> list[RecordedRun]:
    """Opens runs. Their labels are the shortest distinct ends of their paths.

    Raises UserError, which names the flag, if a path is not the workdir of a run or is given twice.
    """
    resolved = [path.resolve() for path in paths]
    # The same run twice would have no distinct label, whatever the paths.
    repeated = [path for path in paths if resolved.count(path.resolve()) > 1]
    if repeated:
        raise UserError(f"{flag}={repeated[1]}: is given twice; give it once")

    # Labels are the last `length` parts of the paths. Whole paths are distinct.
    for length in range(1, max(len(path.parts) for path in resolved) + 1):
        labels = ["/".join(path.parts[-length:]) for path in resolved]
        if len(set(labels)) == len(labels):
            break

    return [
        RecordedRun(label, *open_existing(path, flag))
        for label, path in zip(labels, paths, strict=True)
    ]
