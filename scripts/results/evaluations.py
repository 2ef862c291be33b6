"""Evaluations that `transformer.evaluate` wrote into workdirs, as `scripts.report` and
`scripts.compare` read them.
"""

import itertools
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import ml_collections
from sacrebleu.metrics import BLEU

from configs.rules import HOST, LOG, MESH, PATH
from scripts.results.runs import training_seconds
from transformer.config.cli import LANGUAGES
from transformer.config.keys import flatten, keys_of
from transformer.config.loading import with_values
from transformer.config.types import Config
from transformer.data.sources.lines import read_text_file
from transformer.decoding.bleu import METRICS, Language, bleu_language, metrics_in
from transformer.run.record import read_record
from transformer.support import files
from transformer.support.environment import CONTENTS, TRAINING_CORPUS
from transformer.support.errors import MALFORMED, UserError
from transformer.training.objectives import OBJECTIVES
from transformer.workdir import Workdir, open_existing

NEUTRAL = (LOG, PATH, MESH, HOST)  # scopes of keys that do not change what a run computes
RESULT_TYPES = {
    "split": str | None,
    "step": int,
    "averaged": int,
    "sentences": int,
    "models": list,
    "decoding": dict,
}
RESULT_TYPES |= {"shortlist": str | None}
# those that the oldest evaluations have too
FIRST_METRICS = ("bleu_lowercase_tokenized", "bleu", "chrf")
RESULT_TYPES |= {name: float | int for name in FIRST_METRICS} | {
    f"{name}_signature": str for name in FIRST_METRICS
}
ENVIRONMENT_TYPES = {
    "commit": str | None,
    "uncommitted_changes": bool | None,
    "cpu_count": int | None,
    "devices": list,
}

Settings = dict[str, Any]  # by dotted key; also a JSON object


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of one run.

    path: the .json file. workdir, config, environment: of the run. result: the JSON object.
    """

    path: Path
    workdir: Path
    config: ml_collections.FrozenConfigDict
    environment: Settings
    result: Settings

    @property
    def text(self) -> str:
        """The text that was translated: a split, perhaps of another run's data, or a file."""
        return (
            self.result["split"] or self.result.get("data") or self.result.get("source") or "a file"
        )

    @property
    def split(self) -> str | None:
        """The split as `name_split` names it; None for files."""
        split, _, data = (self.result.get("data") or self.result["split"] or "").partition(" of ")
        return name_split(split, data or None) if split else None

    @property
    def decoding(self) -> Settings:
        """The settings of the search.

        Keys that an older evaluation lacks have the values of the run.
        """
        saved = self.result["decoding"].items()
        # JSON has lists where a configuration has tuples.
        given = {key: tuple(value) if isinstance(value, list) else value for key, value in saved}
        return self.config.decoding.to_dict() | given

    @cached_property
    def settings(self) -> Settings:
        """The settings that evaluations of one system share: `run_settings` and the search."""
        decoding = {f"decoding.{key}": value for key, value in self.decoding.items()}
        search = {
            "split": self.split,
            "averaged": self.result["averaged"],
            "models": len(self.result["models"]),
        }
        search["shortlist"] = (self.result["shortlist"] or "")[:8] or None  # of a digest
        return (
            run_settings(self.config)
            | training_data(self.workdir)
            | decoding
            | search
            | self.languages
        )

    @property
    def languages(self) -> dict[str, str]:
        """The keys of the languages of the texts. An older evaluation has those of the run."""
        own = own_languages(self.config)
        return {key: self.result.get(key.removeprefix("data."), own[key]) for key in own}

    def rank(self, best_step: int | None) -> tuple:
        """Returns the rank among the evaluations of a run: the settings of its config and its best
        step come first.
        """
        has_own_settings = self.decoding == self.config.decoding.to_dict()
        has_own_settings &= self.languages == own_languages(self.config)
        step = self.result["step"]
        return has_own_settings, step == best_step, step, -self.average

    @property
    def average(self) -> int:
        """The number of the run's checkpoints that the evaluation averaged; `scripts.average`
        writes only one.
        """
        return 1 if Workdir(self.workdir).averaged.exists() else self.result["averaged"]

    @property
    def signatures(self) -> dict[str, str]:
        """The signatures of the metrics that `scripts.compare` shows, by metric."""
        signed = {name: self.result.get(f"{name}_signature") for name in metrics_in("comparison")}
        return {name: signature for name, signature in signed.items() if signature is not None}

    @property
    def language(self) -> Language:
        """The language of the translations, with the tokenizer that the signature of `bleu` names
        with a version.
        """
        signed = self.result["bleu_signature"].partition("|tok:")[2]
        tokenizer = next((name for name in BLEU.TOKENIZERS if signed.startswith(name)), None)
        if tokenizer is None:
            raise UserError(
                f"{self.path}: damaged (bleu_signature names no tokenizer); run transformer.evaluate again"
            )
        return bleu_language(with_values(self.config, self.languages).data)._replace(
            tokenizer=tokenizer
        )

    @property
    def commit(self) -> str:
        return short_commit(self.environment)

    @property
    def training_seconds(self) -> float:
        """The time of the training loop, validations included.

        Raises UserError if the record has lost it.
        """
        if self.result["step"] == 0:  # the model of another toolkit
            return 0.0
        path = Workdir(self.workdir).metrics
        if not (seconds := training_seconds(read_record(path))):
            raise UserError(f"{path}: has no line with the seconds of training; restore the file")
        return seconds

    @cached_property
    def sources(self) -> list[str]:
        return self._read_lines("sources.txt")

    @cached_property
    def hypotheses(self) -> list[str]:
        return self._read_lines("hypotheses.txt")

    @cached_property
    def references(self) -> list[str]:
        return self._read_lines("references.txt")

    @cached_property
    def model_scores(self) -> list[float]:
        """The search's score of each sentence."""
        try:
            return [
                float(json.loads(line)["score"]) for line in self._read_lines("sentences.jsonl")
            ]
        except MALFORMED as error:
            path = self.path.with_name(f"{self.path.stem}.sentences.jsonl")
            reason = f"{type(error).__name__}: {error}"
            raise UserError(
                f"{path}: damaged ({reason}); run transformer.evaluate again"
            ) from error

    def _read_lines(self, ending: str) -> list[str]:
        # The path in the result is wrong once the workdir has been moved.
        path = self.path.with_name(f"{self.path.stem}.{ending}")
        lines = read_text_file(path)
        sentences = self.result["sentences"]
        if len(lines) != sentences:
            raise UserError(
                f"{path}: has {len(lines)} lines, must have {sentences}; run transformer.evaluate again"
            )
        return lines


def own_languages(config: Config) -> dict[str, str]:
    """Returns the keys of the languages of a run."""
    return {f"data.{name}": config.data[name] for name in LANGUAGES}


def run_settings(config: Config) -> Settings:
    """Returns the keys that the runs of one system share: all except seed and machine-specific
    keys.
    """
    ignored = (*keys_of(*NEUTRAL), "seed")
    return {key: value for key, value in flatten(config).items() if key not in ignored}


def training_data(workdir: Path) -> dict[str, str | None]:
    """Returns the abbreviated digest of a run's training corpus, whose path may be that of other
    data by now.
    """
    return {"training_data": read_contents(workdir).get(TRAINING_CORPUS, "")[:8] or None}


def read_contents(workdir: Path) -> dict[str, str]:
    """Returns the digests of the vocabulary and the data of a run; none if it has no record of
    them.
    """
    path = workdir / CONTENTS
    return files.read_json(path, dict, "restore it or delete it") if path.exists() else {}


def name_split(split: str, data: str | None) -> str:
    """Returns the name of a split, with the absolute path of `data`, the workdir of another run
    that it is part of.
    """
    return split if data is None else f"{split} of {Path(data).resolve()}"


def evaluate_command(workdir: Path, flags: Sequence[str] = ()) -> str:
    """Returns the command that makes an evaluation, as a person types it."""
    return shlex.join(["python", "-m", "transformer.evaluate", f"--workdir={workdir}", *flags])


def read_evaluation(path: Path) -> Evaluation:
    """Reads the evaluation in a .json file.

    Raises UserError if the file or the record of its run is damaged.
    """
    result = read_result(path)
    workdir, config = open_existing(_evaluated_run(path, result), f"{path}: its run")
    return Evaluation(
        path, workdir.path, config, _read_object(workdir.environment, ENVIRONMENT_TYPES), result
    )


def _evaluated_run(path: Path, result: Settings) -> Path:
    """Returns the workdir that the file is in, or the one it names if `--output=FOLDER` has put it
    elsewhere.
    """
    around = Workdir(path.parent.parent)
    if around.evaluations == path.parent and around.config.exists():
        return around.path
    try:
        return Path(result["models"][0]["workdir"])
    except (*MALFORMED, IndexError) as error:
        raise UserError(
            f"{path}: is in no workdir, and names none; run transformer.evaluate again"
        ) from error


def read_result(path: Path) -> Settings:
    """Reads a JSON object that transformer.evaluate printed or saved.

    Raises UserError if it is damaged.
    """
    result = _read_object(path, RESULT_TYPES)
    return _read_object(path, {name: float | int for name in METRICS if name in result})


def read_evaluations(workdir: Workdir) -> list[Evaluation]:
    """Reads the evaluations of a run on splits, without ensembles.

    Raises UserError for a language model.
    """
    if not OBJECTIVES[open_existing(workdir.path)[1].training.objective].translates:
        advice = "transformer.evaluate prints its own"
        raise UserError(f"{workdir.path}: a language model has no scores of translations; {advice}")
    evaluations = [read_evaluation(path) for path in sorted(workdir.evaluations.glob("*.json"))]
    own = [
        evaluation
        for evaluation in evaluations
        if evaluation.split and len(evaluation.result["models"]) == 1
    ]
    # A flag that repeats the configured value makes the same evaluation under another name.
    distinct = {
        json.dumps([evaluation.settings, evaluation.result["step"]]): evaluation
        for evaluation in own
    }
    return list(distinct.values())


def _read_object(path: Path, types: Mapping[str, Any]) -> Settings:
    """Reads a JSON object. Raises UserError if it cannot be read or lacks values of these types."""

    def check(content: Settings) -> Settings:
        for key, expected in types.items():
            if not isinstance(content[key], expected):
                raise TypeError(f"{key}={content[key]}")
        return content

    return files.read_json(path, check, "run transformer.evaluate again or restore it")


def short_commit(environment: Settings) -> str:
    """Returns the abbreviated commit of each start of a run, as far as they differ, with + for
    uncommitted changes.
    """
    starts = [environment, *environment.get("resumed", [])]
    ends = ["+" if start.get("uncommitted_changes") else "" for start in starts]
    commits = [
        f"{(start.get('commit') or 'unknown')[:9]}{end}"
        for start, end in zip(starts, ends, strict=True)
    ]
    return ", then ".join(commit for commit, _ in itertools.groupby(commits))


def differing_keys(several: Sequence[Settings]) -> list[str]:
    """Returns the keys that are absent from some of these settings or have different values."""
    keys = dict.fromkeys(itertools.chain(*several))
    return [
        key for key in keys if any(values.get(key) != several[0].get(key) for values in several)
    ]
