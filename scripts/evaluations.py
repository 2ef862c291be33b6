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

from transformer import workdir as workdirs
from transformer.config.keys import flatten
from transformer.data.sources.lines import read_text_file
from transformer.errors import UserError
from transformer.workdir import RESUMABLE_KEYS, Workdir

SCORES = ("bleu_lowercase_tokenized", "bleu", "chrf")
RESULT_KEYS = {"split", "step", "averaged", "models", "decoding", "sentences"}
RESULT_KEYS |= {*SCORES, *(f"{name}_signature" for name in SCORES)}
ENVIRONMENT_KEYS = {"commit", "uncommitted_changes", "cpu_count", "devices"}


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of one run.

    path: its .json file. config, environment: those of the run. result: the JSON object, without derived values.
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

    @cached_property
    def hypotheses(self) -> list[str]:
        return self._read_sentences("hypotheses")

    @cached_property
    def references(self) -> list[str]:
        return self._read_sentences("references")

    def _read_sentences(self, kind: str) -> list[str]:
        # Not from the path in the result, which is wrong once the workdir has been moved.
        path = self.path.with_name(f"{self.name}.{kind}.txt")
        lines = read_text_file(path)
        if not lines or len(lines) != self.result["sentences"]:
            raise UserError(
                f"{path}: has {len(lines)} lines, must have the {self.result['sentences']} sentences of "
                f"{self.path.name}; run transformer.evaluate again"
            )
        return lines


def read_evaluation(path: Path) -> Evaluation:
    """Reads the evaluation in a .json file. Raises UserError if the file or the record of its run is damaged."""
    result = _read_object(path, RESULT_KEYS)
    workdir, config = workdirs.open_existing(path.parent.parent)
    return Evaluation(path, config, _read_object(workdir.environment, ENVIRONMENT_KEYS), result)


def read_evaluations(workdir: Workdir) -> list[Evaluation]:
    """Reads all evaluations of a run. Raises UserError if a file is damaged."""
    return [read_evaluation(path) for path in sorted(workdir.evaluations.glob("*.json"))]


def _read_object(path: Path, keys: set[str]) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        missing = sorted(keys - found.keys())
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); run transformer.evaluate again or restore it") from error
    if missing:
        raise UserError(f"{path}: has no {', '.join(missing)}; run transformer.evaluate again or restore it")
    return found


def differing_keys(several: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the keys that are absent from some of these settings or have different values."""
    keys = dict.fromkeys(itertools.chain(*several))
    return [key for key in keys if any(each.get(key) != several[0].get(key) for each in several)]


def mean_and_spread(values: Sequence[float]) -> str:
    """Returns the mean, and with several values ± their sample standard deviation."""
    mean = f"{statistics.mean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2f}"
