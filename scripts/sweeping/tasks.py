"""What one trial of a sweep does: train a run in a workdir of its own, or evaluate an existing run anew."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import ml_collections

from scripts.sweeping.description import Values
from scripts.sweeping.folder import Folder
from transformer import workdir as workdirs
from transformer.config import loading as configuration
from transformer.config.keys import flatten, show
from transformer.errors import UserError
from transformer.training.metrics import read_lines
from transformer.workdir import PLACE, InUse, Workdir


class Task(Protocol):
    """Of all trials of a sweep, which are known by their numbers."""

    config: ml_collections.FrozenConfigDict  # of every trial, but for what is varied
    objectives: tuple[str, ...]  # what a trial can be judged by

    @property
    def identity(self) -> dict[str, Any]:
        """What the trials have in common, as JSON: a sweep in which it differs is another sweep."""

    def check(self, values: Values, objective: str) -> None:
        """Raises UserError if no trial can have these values, or it would not measure the objective."""

    def command(self, trial: int, values: Values) -> list[str]:
        """The module to run and its flags, once all that it needs is made."""

    def output(self, trial: int) -> Path | None:
        """Where the command's standard output is to go, if it has any."""

    def holder(self, trial: int) -> str | None:
        """Who else is at work in the trial's workdir: perhaps what a killed sweep has left, and is about to end."""

    def is_complete(self, trial: int) -> bool: ...

    def measured(self, trial: int, objective: str) -> dict[int, float]:
        """The objective on the validation split, by the steps at which it has been measured."""

    def steps(self, trial: int, values: Values) -> tuple[int, int]:
        """How many the trial has made, and is to make."""


@dataclass(frozen=True)
class Training:
    """Trials that are runs of `transformer.train`."""

    config: ml_collections.FrozenConfigDict
    folder: Folder

    objectives = ("bleu", "loss", "nll", "perplexity", "accuracy")

    @property
    def identity(self) -> dict[str, Any]:
        return {key: value for key, value in flatten(self.config).items() if key not in PLACE}

    def check(self, values: Values, objective: str) -> None:
        config = configuration.with_values(self.config, values)
        if objective == "bleu" and not config.training.eval_bleu:
            raise UserError("objective=bleu: needs config.training.eval_bleu=true; or seek the lowest nll")

    def command(self, trial: int, values: Values) -> list[str]:
        # Not in the workdir: training itself is to see whether what has begun there has this configuration.
        path = self.folder.configs / f"{trial:04}"
        path.mkdir(parents=True, exist_ok=True)
        configuration.save(configuration.with_values(self.config, values), path)
        flags = (f"--config={path / configuration.FILE_NAME}", f"--workdir={self.folder.workdir(trial)}")
        return ["transformer.train", *flags]

    def output(self, trial: int) -> Path | None:
        return None

    def holder(self, trial: int) -> str | None:
        try:
            with workdirs.lock(self.folder.workdir(trial)):
                return None
        except InUse as error:
            return str(error)

    def is_complete(self, trial: int) -> bool:
        return Workdir(self.folder.workdir(trial)).is_complete()

    def measured(self, trial: int, objective: str) -> dict[int, float]:
        lines = read_lines(Workdir(self.folder.workdir(trial)).metrics)
        return {line["step"]: line[objective] for line in lines if line["split"] == "valid" and objective in line}

    def steps(self, trial: int, values: Values) -> tuple[int, int]:
        lines = read_lines(Workdir(self.folder.workdir(trial)).metrics)
        wanted = values.get("training.steps", self.config.training.steps)
        return lines[-1]["step"] if lines else 0, wanted


@dataclass(frozen=True)
class Decoding:
    """Trials that are runs of `transformer.evaluate` on the validation split of the run in `source`."""

    config: ml_collections.FrozenConfigDict  # the run's
    source: Path
    step: int  # of the checkpoint: all trials are to have the same, also if the run goes on
    folder: Folder

    objectives = ("bleu", "chrf", "bleu_lowercase_tokenized", "exact_match")

    @property
    def identity(self) -> dict[str, Any]:
        return {"from": str(self.source.resolve()), "step": self.step}

    def check(self, values: Values, objective: str) -> None:
        for key, value in values.items():
            if not key.startswith("decoding."):
                raise UserError(f"{key}={show(value)}: --from varies decoding keys alone; to train use --config")
        configuration.with_values(self.config, values)

    def command(self, trial: int, values: Values) -> list[str]:
        self.folder.trials.mkdir(exist_ok=True)
        settings = [f"--{key}={show(value)}" for key, value in values.items()]
        flags = (f"--workdir={self.source}", "--split=valid", f"--checkpoint={self.step}")
        return ["transformer.evaluate", *flags, *settings]

    def output(self, trial: int) -> Path | None:
        return self.folder.trials / f"{trial:04}.json"

    def holder(self, trial: int) -> str | None:
        return None

    def is_complete(self, trial: int) -> bool:
        return self._result(trial) is not None

    def measured(self, trial: int, objective: str) -> dict[int, float]:
        result = self._result(trial)
        return {} if result is None else {result["step"]: result[objective]}

    def steps(self, trial: int, values: Values) -> tuple[int, int]:
        return int(self.is_complete(trial)), 1

    def _result(self, trial: int) -> dict[str, Any] | None:
        try:
            return json.loads(self.output(trial).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):  # not begun, or killed before it had printed all
            return None
