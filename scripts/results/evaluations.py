"""Evaluations of runs, as `scripts.report` and `scripts.compare` read them from workdirs."""

import itertools
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sacrebleu.metrics import BLEU

from configs.rules import HOST, LOG, MESH, PATH
from scripts.results import sentence_scores
from scripts.results.evaluation_files import Json, find_run, read_result
from scripts.results.runs import RecordedRun, Run
from scripts.results.sentence_scores import SentenceScores, Texts
from transformer.config.cli import LANGUAGES
from transformer.config.keys import flatten, keys_of
from transformer.config.loading import with_values
from transformer.config.types import Config
from transformer.data.sources.lines import read_text_file
from transformer.decoding.bleu import Language, bleu_language
from transformer.decoding.metrics import METRICS, metrics_in
from transformer.support.environment import TRAINING_CORPUS
from transformer.support.errors import MALFORMED, UserError
from transformer.training.objectives import OBJECTIVES
from transformer.workdir import Workdir, open_existing

NEUTRAL = (LOG, PATH, MESH, HOST)  # scopes of keys that do not change what a run computes


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of one run.

    Attributes:
      path: the .json file of the evaluation, or the record of the run.
      run: a workdir, or the record of one.
      result: the JSON object that transformer.evaluate wrote. A record has only some of its keys.
    """

    path: Path
    run: Run
    result: Json

    @property
    def config(self) -> Config:
        return self.run.config

    @property
    def workdir(self) -> Path:
        return self.run.path

    @property
    def environment(self) -> Json:
        return self.run.environment

    @property
    def text(self) -> str:
        """The text that was translated: a split, perhaps of another run's data, or a file."""
        result = self.result
        return result["split"] or result.get("data") or result.get("source") or "a file"

    @property
    def split(self) -> str | None:
        """The split as `name_split` names it; None for files."""
        name = self.result.get("data") or self.result["split"]
        if not name:
            return None
        split, _, data = name.partition(" of ")
        return name_split(split, data or None)

    @property
    def decoding(self) -> Json:
        """The settings of the search. Keys that an older evaluation lacks have the run's values."""
        decoding = self.config.decoding.to_dict()
        for key, value in self.result["decoding"].items():
            # JSON has lists where a configuration has tuples.
            decoding[key] = tuple(value) if isinstance(value, list) else value
        return decoding

    @cached_property
    def settings(self) -> Json:
        """The settings that evaluations of one system share: `run_settings` and the search."""
        settings = run_settings(self.config) | training_data(self.run.contents)
        # Flags of transformer.evaluate replace the search of the run.
        settings |= {f"decoding.{key}": value for key, value in self.decoding.items()}
        settings |= {
            "split": self.split,
            "averaged": self.result["averaged"],
            "models": len(self.result["models"]),
            "shortlist": (self.result["shortlist"] or "")[:8] or None,  # of a digest
        }
        # Languages on the command line replace the languages of the run.
        return settings | self.languages

    @property
    def languages(self) -> dict[str, str]:
        """The keys of the languages of the texts. Older evaluations have the run's languages."""
        defaults = config_languages(self.config)
        return {
            key: self.result.get(key.removeprefix("data."), code) for key, code in defaults.items()
        }

    def rank(self, best_step: int | None) -> tuple:
        """Returns a sort key for the evaluations of a run.

        Evaluations with the search and the languages of the run's config rank highest, then the
        one at the best step, then later steps, then fewer averaged checkpoints.
        """
        has_config_settings = (
            self.decoding == self.config.decoding.to_dict()
            and self.languages == config_languages(self.config)
        )
        step = self.result["step"]
        return has_config_settings, step == best_step, step, -self.average

    @property
    def average(self) -> int:
        """The number of averaged checkpoints; 1 for the mean that `scripts.average` wrote."""
        return 1 if self.run.is_averaged else self.result["averaged"]

    @cached_property
    def sentence_scores(self) -> dict[str, SentenceScores]:
        """The scores of other programs for these translations, by metric."""
        path = self._beside(sentence_scores.ENDING)
        scores = sentence_scores.read(path)
        return sentence_scores.current(scores, self.texts, path) if scores else {}

    @property
    def texts(self) -> Texts:
        return Texts(self.sources, self.references, self.hypotheses)

    @property
    def signatures(self) -> dict[str, str]:
        """The signatures of the metrics that `scripts.compare` shows, by metric."""
        signatures = {}
        for name in [*metrics_in("comparison"), *external_names(self.result)]:
            # Older evaluations have fewer metrics.
            signature = self.result.get(f"{name}_signature")
            if signature is not None:
                signatures[name] = signature
        return signatures

    @property
    def language(self) -> Language:
        """The language of the translations, with the tokenizer in the signature of `bleu`."""
        # The signature also has the tokenizer's version: "...|tok:ja-mecab-0.996-IPA|...".
        signature = self.result["bleu_signature"].partition("|tok:")[2]
        tokenizer = next((name for name in BLEU.TOKENIZERS if signature.startswith(name)), None)
        if tokenizer is None:
            raise UserError(
                f"{self.path}: damaged (bleu_signature names no tokenizer); "
                "run transformer.evaluate again"
            )
        data_config = with_values(self.config, self.languages).data
        return bleu_language(data_config)._replace(tokenizer=tokenizer)

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
        return self.run.training_seconds

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
        return self.sentence_numbers("score")

    def sentence_numbers(self, field: str) -> list[float]:
        """Reads a field of each line of `sentences.jsonl`; NaN for null.

        Raises UserError if the file is damaged.
        """
        ending = "sentences.jsonl"
        try:
            values = [json.loads(line)[field] for line in self._read_lines(ending)]
            return [math.nan if value is None else float(value) for value in values]
        except MALFORMED as error:
            reason = f"{type(error).__name__}: {error}"
            raise UserError(
                f"{self._beside(ending)}: damaged ({reason}); run transformer.evaluate again"
            ) from error

    def _beside(self, ending: str) -> Path:
        # The path in the result is wrong once the workdir has been moved.
        return self.path.with_name(f"{self.path.stem}.{ending}")

    def _read_lines(self, ending: str) -> list[str]:
        path = self._beside(ending)
        lines = read_text_file(path)
        sentences = self.result["sentences"]
        if len(lines) != sentences:
            raise UserError(
                f"{path}: has {len(lines)} lines, must have {sentences}; "
                "run transformer.evaluate again"
            )
        return lines


def external_names(result: Json) -> list[str]:
    """Returns the metrics of other programs in the result of an evaluation."""
    names = [key.removesuffix("_signature") for key in result if key.endswith("_signature")]
    return [name for name in names if name not in METRICS]


def config_languages(config: Config) -> dict[str, str]:
    """Returns the keys of the languages of a run with their values."""
    return {f"data.{name}": config.data[name] for name in LANGUAGES}


def run_settings(config: Config) -> Json:
    """Returns the keys that the runs of a system share: all but seed and machine-specific keys."""
    # Seeds are repetitions of a system, not settings.
    ignored = (*keys_of(*NEUTRAL), "seed")
    return {key: value for key, value in flatten(config).items() if key not in ignored}


def training_data(contents: Mapping[str, str]) -> dict[str, str | None]:
    """Returns the abbreviated digest of a run's training corpus, from the digests of a run.

    It identifies the data even if the files at the configured path have changed since.
    """
    return {"training_data": contents.get(TRAINING_CORPUS, "")[:8] or None}


def name_split(split: str, data: str | None) -> str:
    """Returns the name of a split: "valid", or "valid of PATH" for the split of another run.

    `data` is the workdir of the other run; PATH is its absolute path.
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
    workdir, config = open_existing(find_run(path, result), f"{path}: its run")
    run = RecordedRun(workdir.path.name, workdir, config)
    _ = run.environment  # a damaged file is an error now
    evaluation = Evaluation(path, run, result)
    scores = evaluation.sentence_scores
    if scores:
        result |= sentence_scores.describe(scores, evaluation.texts)
    return evaluation


def read_evaluations(workdir: Workdir) -> list[Evaluation]:
    """Reads the evaluations of a run on splits, without ensembles.

    Raises UserError for a language model.
    """
    _, config = open_existing(workdir.path)
    if not OBJECTIVES[config.training.objective].has_both_sides:
        raise UserError(
            f"{workdir.path}: a language model has no scores of translations; "
            "transformer.evaluate prints its own"
        )

    # One evaluation for each group with the same settings.
    distinct = {}
    for path in sorted(workdir.evaluations.glob("*.json")):
        evaluation = read_evaluation(path)
        if evaluation.split and len(evaluation.result["models"]) == 1:
            # A flag that repeats the configured value makes the same evaluation under another name,
            # and only scripts.directions adds intervals.
            key = json.dumps([evaluation.settings, evaluation.result["step"]])
            same = distinct.get(key, evaluation)
            distinct[key] = max(evaluation, same, key=lambda each: len(each.result))
    return list(distinct.values())


def short_commit(environment: Json) -> str:
    """Returns the abbreviated commits of a run, with + for uncommitted changes.

    A run that was resumed at another commit has both: "012345678, then 9abcdef01+".
    """
    commits = []
    # A run has a start, and another one each time that it was resumed.
    for start in (environment, *environment.get("resumed", [])):
        commit = (start.get("commit") or "unknown")[:9]
        commits.append(commit + ("+" if start.get("uncommitted_changes") else ""))
    # Successive starts at the same commit are shown once.
    return ", then ".join(commit for commit, _ in itertools.groupby(commits))


def differing_keys(settings: Sequence[Json]) -> list[str]:
    """Returns the keys that are absent from some of these settings or have different values."""
    first = settings[0] if settings else {}
    keys = dict.fromkeys(itertools.chain(*settings))  # each once, in order
    return [key for key in keys if any(values.get(key) != first.get(key) for values in settings)]
