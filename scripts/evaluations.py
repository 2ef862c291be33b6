"""Evaluations that `transformer.evaluate` wrote into workdirs, as `scripts.report` and `scripts.compare` read them."""

import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import ml_collections

from transformer.config.keys import flatten
from transformer.data.sources.lines import read_text_file
from transformer.errors import UserError
from transformer.workdir import RESUMABLE_KEYS, Workdir, open_existing

SCORES = ("bleu_lowercase_tokenized", "bleu", "chrf")


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of one run.

    path: its .json file. config, environment: those of the run. result: the JSON object.
    """

    path: Path
    config: ml_collections.FrozenConfigDict
    environment: dict[str, Any]
    result: dict[str, Any]

    @property
    def workdir(self) -> Path:
        return self.path.parent.parent

    @property
    def name(self) -> str:
        return self.path.name.removesuffix(".json")

    @property
    def run_settings(self) -> dict[str, Any]:
        """The configuration without the seed and the keys that say where a run is, such as data.path."""
        return {key: value for key, value in flatten(self.config).items() if key not in (*RESUMABLE_KEYS, "seed")}

    @property
    def decoding(self) -> dict[str, Any]:
        return self.result["decoding"]

    @property
    def commit(self) -> str:
        """The abbreviated commit of the run, with + for uncommitted changes."""
        changed = "+" if self.environment["uncommitted_changes"] else ""
        return (self.environment["commit"] or "unknown")[:9] + changed

    # The paths in the result are wrong once the workdir has been moved.
    @cached_property
    def hypotheses(self) -> list[str]:
        return read_text_file(self.path.with_name(f"{self.name}.hypotheses.txt"))

    @cached_property
    def references(self) -> list[str]:
        return read_text_file(self.path.with_name(f"{self.name}.references.txt"))


def read_evaluation(path: Path) -> Evaluation:
    """Reads the evaluation in a .json file. Raises UserError if the file or the record of its run is damaged."""
    result = _read_object(path)
    workdir, config = open_existing(path.parent.parent)
    return Evaluation(path, config, _read_object(workdir.environment), result)


def read_evaluations(workdir: Workdir) -> list[Evaluation]:
    """Reads all evaluations of a run, except those of ensembles, which are not of one run."""
    evaluations = [read_evaluation(path) for path in sorted(workdir.evaluations.glob("*.json"))]
    return [evaluation for evaluation in evaluations if len(evaluation.result["models"]) == 1]


def _read_object(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); run transformer.evaluate again or restore it") from error


def differing_keys(several: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the keys that are absent from some of these settings or have different values."""
    keys = dict.fromkeys(itertools.chain(*several))
    return [key for key in keys if any(each.get(key) != several[0].get(key) for each in several)]


def mean_and_spread(values: Sequence[float]) -> str:
    """Returns the mean, followed by ± and the sample standard deviation if there are several values."""
    mean = f"{statistics.mean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2f}"
