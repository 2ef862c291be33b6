"""Runs, as reports and figures read them from workdirs. They need not be complete."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from scripts.results.evaluation_files import read_object
from transformer.checkpoints.restore import steps_in
from transformer.config.types import Config
from transformer.decoding.metrics import rank
from transformer.run.record import read_record
from transformer.support import files
from transformer.support.errors import UserError
from transformer.training.progress import Record
from transformer.workdir import Workdir, open_existing

ENVIRONMENT_TYPES = {
    "commit": str | None,
    "uncommitted_changes": bool | None,
    "cpu_count": int | None,
    "devices": list,
}


class Run(Protocol):
    """The facts that tables of results need: of a workdir, or of the record that outlives it.

    Attributes:
      path: the workdir or the record.
      record: the lines of `metrics.jsonl`. A record has only those of validations.
      contents: the digests of vocabulary and corpora.
      training_seconds: the time of the training loop, with validations and without compilation.
      is_averaged: true if `scripts.average` has made the workdir.
    """

    path: Path
    config: Config
    record: list[Record]
    environment: dict[str, Any]
    contents: dict[str, str]
    training_seconds: float
    is_averaged: bool


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """A `Run` with its workdir. Runs that are shown together have different labels."""

    label: str
    workdir: Workdir
    config: Config

    @functools.cached_property
    def record(self) -> list[Record]:
        return read_record(self.workdir.metrics)

    @property
    def path(self) -> Path:
        return self.workdir.path

    @functools.cached_property
    def environment(self) -> dict[str, Any]:
        """The content of `environment.json`. Raises UserError if it is damaged."""
        return read_object(self.workdir.environment, ENVIRONMENT_TYPES)

    @property
    def contents(self) -> dict[str, str]:
        """The digests of vocabulary and data, if any. Raises UserError if the file is damaged."""
        path = self.workdir.contents
        return files.read_json(path, dict, "restore it or delete it") if path.exists() else {}

    @property
    def training_seconds(self) -> float:
        """Raises UserError if the record has lost it."""
        seconds = training_seconds(self.record)
        if not seconds:
            raise UserError(
                f"{self.workdir.metrics}: has no line with the seconds of training; "
                "restore the file"
            )
        return seconds

    @property
    def is_averaged(self) -> bool:
        return self.workdir.averaged.exists()

    def check_complete(self) -> None:
        """Raises UserError if the run is not complete."""
        if not self.workdir.is_complete():
            raise UserError(
                f"{self.path}: this run is not complete; "
                "run the same transformer.train command to continue it"
            )

    @property
    def has_checkpoint(self) -> bool:
        return bool(steps_in(self.workdir.checkpoints))

    @property
    def best_step(self) -> int | None:
        """The step of the best validation by `checkpoint.best_metric`; None without validations."""
        best = best_of(self)
        return best and best["step"]


def best_of(run: Run) -> Record | None:
    """Returns the line of the best validation by `checkpoint.best_metric`; None without any."""
    return best_validation(run.record, run.config.checkpoint.best_metric)


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


def describe_note(config: Config) -> str:
    """Returns the note and the tags of a run."""
    words = [config.training.note, *(f"#{tag}" for tag in config.training.tags)]
    return " ".join(filter(None, words))
