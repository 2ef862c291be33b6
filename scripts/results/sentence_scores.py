"""Scores of the sentences of an evaluation by metrics that others compute.

They come from a file or from the command of a scorer, and are stored beside the evaluation with a
digest of its texts. Their mean is the score of the evaluation.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import logging
from sacrebleu.metrics import BLEU, CHRF

from transformer.data.sources.lines import read_text_file
from transformer.decoding.bleu import Language, make_bleu
from transformer.decoding.metrics import LOSSES, METRICS, Metric
from transformer.decoding.scorer import check_command, parse_score, run_scorer
from transformer.support import files
from transformer.support.errors import MALFORMED, UserError

ENDING = "scores.jsonl"  # of the file beside an evaluation
# Fields of the results beside metrics.
RESERVED = {"baseline", "commit", "evaluation", "label", "method", "note", "runs", "seed"}
RESERVED |= {"system", "workdir"}
_NAME = re.compile(r"([A-Za-z][\w.+-]*)(,lower)?:(.*)", re.DOTALL)


def sentence_metric(name: str, language: Language) -> BLEU | CHRF:
    """Returns sacreBLEU's metric for single sentences, "bleu" or "chrf"."""
    if name == "chrf":
        return CHRF()
    metric = make_bleu(language.tokenizer)
    metric.effective_order = True  # otherwise the score of a short sentence is 0
    return metric


class NamedFlag(NamedTuple):
    """The value of --scores or --scorer: NAME:VALUE, or NAME,lower:VALUE if lower is better."""

    name: str
    is_lower_better: bool
    value: str  # a command, or files


class Texts(NamedTuple):
    """The texts of an evaluation, a line for each sentence."""

    source: Sequence[str]
    reference: Sequence[str]
    hypothesis: Sequence[str]

    @property
    def digest(self) -> str:
        """The sha256 of all texts."""
        content = "\n".join("\t".join(row) for row in zip(*self, strict=True))
        return hashlib.sha256(content.encode()).hexdigest()

    @property
    def are_sentences(self) -> list[bool]:
        """False for lines that are blank on all sides, such as the ends of documents."""
        return [any(map(str.strip, row)) for row in zip(*self, strict=True)]


class SentenceScores(NamedTuple):
    """The scores of all lines of an evaluation by one metric.

    signature: the command, or "given" for the scores of a file.
    texts: the digest of the texts.
    """

    values: list[float]
    is_lower_better: bool
    signature: str
    texts: str

    def mean(self, texts: Texts) -> float:
        """Returns the mean over the sentences."""
        values = list(itertools.compress(self.values, texts.are_sentences)) or self.values
        return sum(values) / len(values)


def metric_of(name: str) -> Metric:
    """Returns the metric of this name: an entry of METRICS, or one that others compute."""
    return METRICS.get(name) or Metric(_not_here, name, format=".4f", is_mean=True)


def _parse_flag(flag: str, text: str) -> NamedFlag:
    """Returns the parts of a flag. Raises UserError for another form than NAME:VALUE."""
    match = _NAME.fullmatch(text)
    if not match or not match[3].strip():
        raise UserError(
            f"--{flag}={text}: must be NAME:{'COMMAND' if flag == 'scorer' else 'FILE'}, or "
            "NAME,lower:... if lower scores are better"
        )
    name = match[1]
    if name in RESERVED or name.endswith("_signature"):
        raise UserError(f"--{flag}={text}: {name} is a field of the results; choose another name")
    if name in METRICS or name in LOSSES:
        raise UserError(f"--{flag}={text}: {name} is computed here; choose another name")
    if flag == "scorer":
        check_command(f"--{flag}={name}", match[3])
    return NamedFlag(name, match[2] is not None, match[3])


def parse_flags(flag: str, texts: Iterable[str]) -> list[NamedFlag]:
    """Returns the values of --scores or --scorer. Raises UserError if one is wrong."""
    return [_parse_flag(flag, text) for text in texts]


def score_with_command(flag: NamedFlag, texts: Sequence[Texts]) -> list[SentenceScores]:
    """Returns the scores of several evaluations, by one run of a command."""
    columns = {
        field: [line for one in texts for line in getattr(one, field)] for field in Texts._fields
    }
    logging.info("Scoring %d lines: %s", len(columns["hypothesis"]), flag.value)
    values = iter(run_scorer(flag.value, columns))
    return [
        SentenceScores(
            [next(values) for _ in one.hypothesis], flag.is_lower_better, flag.value, one.digest
        )
        for one in texts
    ]


def read_given(flag: NamedFlag, path: str, texts: Texts) -> SentenceScores:
    """Reads the scores of an evaluation from a file with a number on each line.

    Raises UserError if the file has another number of lines, or a line that is not a number.
    """
    lines = read_text_file(files.expand_user(path))
    if len(lines) != len(texts.hypothesis):
        raise UserError(
            f"--scores={flag.name}:{path}: has {len(lines)} lines, must have one for each of the "
            f"{len(texts.hypothesis)} translations"
        )
    values = [
        parse_score(line, f"--scores={flag.name}:{path}: line {i}")
        for i, line in enumerate(lines, start=1)
    ]
    return SentenceScores(values, flag.is_lower_better, "given", texts.digest)


def write(path: Path, scores: Mapping[str, SentenceScores]) -> None:
    """Adds scores by the names of their metrics to a file, which has a line for each metric."""
    lines = [
        json.dumps({"metric": name} | one._asdict())
        for name, one in (read(path) | dict(scores)).items()
    ]
    files.write_text(path, "".join(f"{line}\n" for line in lines))


def read(path: Path) -> dict[str, SentenceScores]:
    """Reads the scores in a file by the names of their metrics; {} if there is no file.

    Raises UserError if the file is damaged.
    """
    if not path.exists():
        return {}
    scores = {}
    try:
        for line in path.read_text("utf-8").splitlines():
            fields = json.loads(line)
            name = fields.pop("metric")
            scores[name] = SentenceScores(**fields)
            if not all(isinstance(value, int | float) for value in scores[name].values):
                raise TypeError(f"the values of {name}")
    except MALFORMED as error:
        raise UserError(
            f"{path}: damaged ({type(error).__name__}: {error}); delete it, and give the scores "
            "again"
        ) from error
    return scores


def describe(scores: Mapping[str, SentenceScores], texts: Texts) -> dict[str, Any]:
    """Returns the mean of each metric, with its signature, as an evaluation's result has them."""
    result: dict[str, Any] = {}
    for name, one in scores.items():
        lower = "lower is better|" if one.is_lower_better else ""
        result[name] = one.mean(texts)
        result[f"{name}_signature"] = f"{lower}{one.signature}"
    return result


def current(
    scores: Mapping[str, SentenceScores], texts: Texts, path: Path
) -> dict[str, SentenceScores]:
    """Returns the scores of these texts. Warns of scores in the file `path` of other texts."""
    digest = texts.digest
    stale = [name for name, one in scores.items() if one.texts != digest]
    if stale:
        logging.warning("%s: %s are scores of other translations.", path, ", ".join(stale))
    return {name: one for name, one in scores.items() if one.texts == digest}


def _not_here(*_: Iterable[Any]) -> tuple[float, None]:
    raise AssertionError("this metric is computed by others")
