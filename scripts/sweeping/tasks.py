"""The commands of trials: training in a separate workdir, or decoding with an existing run."""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.rules import HOST, LOG, MESH
from scripts.results.evaluations import Evaluation, read_evaluation
from scripts.results.external_scores import attach
from scripts.results.sentence_scores import parse_flags
from scripts.sweeping.description import Sweep, Values, extremes
from scripts.sweeping.folder import SweepFolder
from transformer.checkpoints import restore
from transformer.config import loading
from transformer.config.keys import check_for_training, flatten, format_value, keys_of
from transformer.config.types import Config
from transformer.decoding.metrics import METRICS, applicable, metrics_in
from transformer.run.record import read_record
from transformer.support.errors import UserError
from transformer.training.held_out import metric_names
from transformer.training.objectives import OBJECTIVES
from transformer.workdir import Workdir, open_existing


@dataclass(frozen=True)
class TrainingTask:
    """Trials that run `transformer.train` with `config` and the varied values."""

    config: Config
    folder: SweepFolder

    @property
    def objectives(self) -> list[str]:
        """The metrics that a trial can measure."""
        translated = applicable(metrics_in("validation"), self.config.data.target_form)
        return list(dict.fromkeys([*metric_names(self.config), *translated]))

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that identify the sweep, as JSON."""
        ignored = keys_of(MESH, HOST, LOG)
        return {key: value for key, value in flatten(self.config).items() if key not in ignored}

    def check(self, values: Values, objective: str) -> None:
        """Raises UserError if the values are invalid or a trial does not measure the objective."""
        if "decoding.beam_size" in values:
            raise UserError(
                "decoding.beam_size: validation reads training.eval_beam_size; "
                "vary that, or use --from"
            )
        # The same checks as at the start of a run, before any trial starts.
        config = loading.with_values(self.config, values)
        check_for_training(config)

        # Metrics of translations need a search during validation.
        if objective.partition("/")[0] in METRICS and not config.training.eval_bleu:
            raise UserError(
                f"objective={objective}: needs config.training.eval_bleu=true; or use nll"
            )

    def command(self, trial: int, values: Values) -> list[str]:
        """Writes the trial's configuration. Returns the module to run and its flags."""
        # Outside the workdir: training compares it with the configuration in there.
        path = self.folder.configs / f"{trial:04}"
        path.mkdir(parents=True, exist_ok=True)
        loading.save(loading.with_values(self.config, values), path)
        config_file = path / loading.FILE_NAME
        workdir = self.folder.workdir(trial)
        return ["transformer.train", f"--config={config_file}", f"--workdir={workdir}"]

    def output(self, trial: int) -> Path:
        """Returns the file for the command's standard output."""
        return Path(os.devnull)

    def is_complete(self, trial: int) -> bool:
        return Workdir(self.folder.workdir(trial)).is_complete()

    def read_objective(self, trial: int, objective: str) -> dict[int, float]:
        """Returns the validation results by step."""
        results = {}
        for line in read_record(Workdir(self.folder.workdir(trial)).metrics):
            if line["split"] == "valid" and objective in line:
                results[line["step"]] = line[objective]
        return results

    def score(self, trial: int, objective: str) -> None:
        """Computes what the objective of a complete trial still lacks.

        Raises UserError if the command of a metric fails.
        """


@dataclass(frozen=True)
class DecodingTask:
    """Trials that evaluate an existing run on its validation split.

    The methods are documented in `TrainingTask`.

    Attributes:
      config: the configuration of the run.
      source: the workdir of the run.
      step: all trials decode with the checkpoint of this step, even if the run continues meanwhile.
      folder: the folder of the sweep.
      scorers: the values of the flag --scorer.
    """

    config: Config
    source: Path
    step: int
    folder: SweepFolder
    scorers: Sequence[str] = ()

    @property
    def objectives(self) -> list[str]:
        names = [scorer.name for scorer in parse_flags("scorer", self.scorers)]
        return [*applicable(METRICS, self.config.data.target_form), *names]

    @property
    def identity(self) -> dict[str, Any]:
        scorers = {"scorers": list(self.scorers)} if self.scorers else {}
        return {"from": str(self.source.resolve()), "step": self.step} | scorers

    def check(self, values: Values, objective: str) -> None:
        if not OBJECTIVES[self.config.training.objective].has_both_sides:
            raise UserError(
                f"--from={self.source}: a language model has no scores of translations to sweep"
            )
        for key, value in values.items():
            if not key.startswith("decoding."):
                raise UserError(
                    f"{key}={format_value(value)}: --from varies only decoding keys; "
                    "use --config to train"
                )
        # This checks the types and the bounds of the values.
        loading.with_values(self.config, values)

    def command(self, trial: int, values: Values) -> list[str]:
        return [
            "transformer.evaluate",
            f"--workdir={self.source}",
            "--split=valid",
            f"--checkpoint={self.step}",
            *(f"--{key}={value}" for key, value in values.items()),
        ]

    def output(self, trial: int) -> Path:
        return self.folder.result(trial)

    def is_complete(self, trial: int) -> bool:
        return bool(self._result(trial))

    def read_objective(self, trial: int, objective: str) -> dict[int, float]:
        result = self._result(trial)
        if result and objective not in result:  # a metric of another program
            result = self._evaluation(result).result
        return {result["step"]: result[objective]} if objective in result else {}

    def score(self, trial: int, objective: str) -> None:
        if objective not in self._result(trial):
            flags = argparse.Namespace(scorer=self.scorers)
            attach([self._evaluation(self._result(trial))], flags)

    def _evaluation(self, result: dict[str, Any]) -> Evaluation:
        path = Path(result["hypotheses"].removesuffix(".hypotheses.txt") + ".json")
        return read_evaluation(path)

    def _result(self, trial: int) -> dict[str, Any]:
        try:
            return json.loads(self.output(trial).read_text("utf-8"))
        except (FileNotFoundError, ValueError):  # the trial has not started, or was killed
            return {}


Task = TrainingTask | DecodingTask


def make_task(arguments: argparse.Namespace, folder: SweepFolder) -> Task:
    if arguments.config is not None:
        return TrainingTask(loading.load_file(arguments.config, arguments.overrides), folder)
    source = Path(arguments.source)
    _, config = open_existing(source)
    step = None
    if folder.record.exists():
        # A resumed sweep keeps its checkpoint, although the run may have a better one by now.
        step = folder.read()["task"].get("step")
    if step is None:
        step = restore.choose_step(source, "best")
    for scorer in parse_flags("scorer", arguments.scorer):
        if scorer.is_lower_better:
            raise UserError(
                f"--scorer={scorer.name},lower: a sweep maximizes the metrics of other programs; "
                "let the command print negative scores"
            )
    return DecodingTask(config, source, step, folder, arguments.scorer)


def check_values(sweep: Sweep, task: Task) -> None:
    """Raises UserError if a listed trial, or a bound or choice of the space, is invalid."""
    if sweep.objective not in task.objectives:
        raise UserError(
            f"objective={sweep.objective}: must be one of {', '.join(task.objectives)} here"
        )

    # A search may draw any value between its bounds, so the bounds themselves are checked, one key
    # at a time.
    checks = [(f"trial {number}", values) for number, values in enumerate(sweep.trials)]
    for key, distribution in sweep.space.items():
        checks += [
            (f"{key}={format_value(value)}", {key: value}) for value in extremes(distribution)
        ]
    for name, values in checks:
        try:
            task.check(values, sweep.objective)
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
