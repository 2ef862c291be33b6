"""Candidate translations of training sources, and their rewards, as files to train on."""

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from scripts.datasets import folder
from scripts.results.sentence_scores import NamedFlag, Texts, sentence_metric
from transformer.config.types import Config, with_changes
from transformer.data.sources import source
from transformer.decoding.bleu import Language
from transformer.decoding.control.arguments import LINE_BREAKS
from transformer.decoding.scorer import SECONDS, run_scorer
from transformer.support import files
from transformer.support.errors import UserError

ENDING = "rewards"
Pair = tuple[str, str]  # a source and its reference


def _sentence_scores(texts: Texts, language: Language, name: str) -> list[float]:
    metric = sentence_metric(name, language)
    pairs = zip(texts.hypothesis, texts.reference, strict=True)
    return [metric.sentence_score(text, [reference]).score / 100 for text, reference in pairs]


# Functions of (texts, language) that return the reward of each candidate.
REWARDS: dict[str, Callable[[Texts, Language], Sequence[float]]] = {
    "chrf": functools.partial(_sentence_scores, name="chrf"),
    "bleu": functools.partial(_sentence_scores, name="bleu"),
    "constant": lambda texts, _: [0.0] * len(texts.hypothesis),
    "random": lambda texts, _: np.random.default_rng(0).random(len(texts.hypothesis)).tolist(),
}


def read_pairs(data_config: Config, path: str | None) -> list[Pair]:
    """Reads the training pairs of a configuration, or of the folder `path`.

    Pairs that training drops are left out: those with an empty side.
    """
    if path:
        # The other keys name lines of the run's own files.
        changes = {"path": path, "mixture": (), "exclude": "", "train_pairs": 0}
        data_config = with_changes(data_config, source="text", **changes)
    pairs: list[Pair] = []
    for pair in zip(*source.read_pairs(data_config, "train"), strict=True):
        # Readers of the output would drop a byte order mark of its first line.
        text, reference = (side.translate(LINE_BREAKS).strip().lstrip("\ufeff") for side in pair)
        if text and reference:
            pairs.append((text, reference))
    return pairs


def make_groups(
    sources: Sequence[str],
    references: Sequence[str],
    translations: Iterable[Sequence[str]],
    count: int,
) -> list[list[str]]:
    """Returns `count` candidates of each source, or none if it has fewer than two.

    They are the reference, unless it is empty, and the first translations. If fewer than `count`
    are different, they are repeated. A repetition of the source of the group before has none, since
    a change of the source separates groups.
    """
    groups = []
    previous = None
    for text, reference, hypotheses in zip(sources, references, translations, strict=True):
        # A translation is empty if its line was cut or failed.
        candidates = filter(None, [reference, *(hypothesis.strip() for hypothesis in hypotheses)])
        different = list(dict.fromkeys(candidates))[:count]
        if len(different) < 2 or text == previous:
            groups.append([])
            continue
        groups.append(list(itertools.islice(itertools.cycle(different), count)))
        previous = text
    return groups


def flatten(pairs: Sequence[Pair], groups: Sequence[Sequence[str]]) -> Texts:
    """Returns the source, the reference and the text of each candidate."""
    rows = [
        (*pair, candidate)
        for pair, candidates in zip(pairs, groups, strict=True)
        for candidate in candidates
    ]
    return Texts(*zip(*rows, strict=True))


def check_own_folder(output: Path, sources: Path) -> None:
    """Raises UserError if the folder has data but no file `sources`, which this command writes."""
    if sources.exists():
        return
    for pattern in ("train.*", "data.json", f"*.{ENDING}"):
        for path in output.glob(pattern):
            raise UserError(
                f"--output={output}: has {path.name} of another program; name another folder"
            )


def write_pairs(output: Path, languages: folder.LanguagePair, texts: Texts) -> None:
    """Writes train.LANGUAGE.

    Removes the record and the rewards of other candidates, whose lines would not match.
    """
    paths = [output / f"train.{language}" for language in languages]
    for path, lines in zip(paths, (texts.source, texts.hypothesis), strict=True):
        content = "".join(f"{line}\n" for line in lines)
        if not path.exists() or path.read_bytes() != content.encode():
            for stale in [*output.glob("data.json"), *output.glob(f"*.{ENDING}")]:
                logging.warning("%s: removed, since the candidates change.", stale)
                stale.unlink()
            files.write_text(path, content)


def score(scorer: NamedFlag, texts: Texts) -> list[float]:
    """Returns the numbers that a command prints for each candidate, with a sign: higher is better.

    The command may take a second for each.
    """
    values = run_scorer(scorer.value, texts._asdict(), max(SECONDS, len(texts.hypothesis)))
    return [-value if scorer.is_lower_better else value for value in values]


def write_rewards(output: Path, name: str, rewards: Iterable[float]) -> None:
    files.write_text(output / f"{name}.{ENDING}", "".join(f"{value:.9g}\n" for value in rewards))


def write_record(
    output: Path,
    languages: folder.LanguagePair,
    groups: Sequence[Sequence[str]],
    model: dict[str, Any],
) -> dict[str, Any]:
    """Writes and returns `data.json`."""
    facts = {
        "by": "candidates",
        "candidates": max(map(len, groups)),
        "rewards": sorted(path.stem for path in output.glob(f"*.{ENDING}")),
        "sources": sum(map(bool, groups)),
        "with_repetitions": sum(len(set(group)) < len(group) for group in groups),
        "left_out": groups.count([]),
        "model": model,
    }
    return folder.write_record(output, languages, facts)
