"""The result of an evaluation and its files, in the workdir's folder `evaluations` or another one."""

import argparse
import dataclasses
import itertools
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sacrebleu.metrics import CHRF

from transformer.checkpoints.trained import Trained
from transformer.decoding.bleu import References
from transformer.decoding.evaluation import ScoredTranslations
from transformer.decoding.translation import Translation
from transformer.support import files
from transformer.support.errors import UNREADABLE, UserError


@dataclass(frozen=True)
class EvaluationFiles:
    """The content of PATH.json, and the lines of PATH.KEY for each key of `lines`."""

    path: Path
    result: dict[str, Any]
    lines: Mapping[str, list[str]]

    def save(self) -> None:
        """Writes all files."""
        for ending, lines in self.lines.items():
            files.write_text(Path(f"{self.path}.{ending}"), "".join(f"{line}\n" for line in lines))
        files.write_json(Path(f"{self.path}.json"), self.result)


def make_path(arguments: argparse.Namespace, models: Trained) -> Path:
    """Returns the path of the files in a folder, which it makes.

    Raises UserError if it cannot be written to.
    """
    folder = files.expanded(arguments.output) if arguments.output else models.workdir.evaluations
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        if error.errno in files.FULL_DISK:
            raise
        advice = "name another folder with --output=FOLDER"
        raise UserError(f"{folder}: cannot be written to ({error.strerror}); {advice}") from error
    return folder / evaluation_name(arguments, models)


def of_translations(
    arguments: argparse.Namespace,
    models: Trained,
    path: Path,
    sources: Sequence[str],
    references: References,
    translated: ScoredTranslations,
) -> EvaluationFiles:
    """Returns the evaluation of translations, with all texts.

    Repeating an evaluation overwrites its files.
    """
    described = describe_models(models)
    evaluated = {
        # of the run's own data, as reports need
        "split": None if arguments.data else arguments.split,
        "data": f"{arguments.split} of {arguments.data}" if arguments.data else None,
        "source": arguments.source,
        "reference": _one_or_list(arguments.reference),
        "source_language": models.config.data.source_language,
        "target_language": models.config.data.target_language,
        "models": described["models"],
        "decoding": models.config.decoding.to_dict(),
    }
    path = numbered(path, evaluated)
    sources, *references = (
        [" ".join(text.splitlines()) for text in texts] for texts in (sources, *references)
    )
    endings = [
        "references.txt",
        *(f"references.{number}.txt" for number in range(2, len(references) + 1)),
    ]
    lines = {
        "sources.txt": sources,
        "hypotheses.txt": [best.text for best in translated.translations],
    }
    lines |= zip(endings, references, strict=True)
    lines["sentences.jsonl"] = sentence_lines(sources, references, translated.translations)
    result = {
        **files.six_digits(translated.scores | translated.speed),
        **evaluated,
        "sentences": len(sources),
        **described,
        "shortlist": None if models.shortlist is None else models.shortlist.fingerprint,
        "sources": f"{path}.sources.txt",
        "references": _one_or_list([f"{path}.{ending}" for ending in endings]),
        "hypotheses": f"{path}.hypotheses.txt",
        "sentence_scores": f"{path}.sentences.jsonl",
    }
    return EvaluationFiles(path, result, lines)


def sentence_lines(
    sources: list[str], references: References, translations: list[Translation]
) -> list[str]:
    """Returns a line of JSON for each sentence.

    Lengths are in characters, `reference_length` that of the first one.
    """
    chrf = CHRF()
    lines = []
    for source, translation, *known in zip(sources, translations, *references, strict=True):
        sentence = {
            "line": len(lines) + 1,
            "chrf": chrf.sentence_score(translation.text, known).score,
            "score": translation.score,
            "source_length": len(source),
            "hypothesis_length": len(translation.text),
            "reference_length": len(known[0]),
            "source": source,
            "hypothesis": translation.text,
            "references": known,
        }
        lines.append(json.dumps(files.six_digits(sentence), ensure_ascii=False))
    return lines


def _one_or_list(names: Sequence[str]) -> str | list[str] | None:
    """Returns the only name, as results with one reference have it; None for no names."""
    return list(names) if len(names) > 1 else next(iter(names), None)


def describe_models(models: Trained) -> dict[str, Any]:
    """Returns the checkpoints of all models, and the first one's step and number of averaged
    checkpoints.
    """
    described = [dataclasses.asdict(checkpoint) for checkpoint in models.checkpoints]
    return {
        "models": described,
        "step": described[0]["step"],
        "averaged": len(described[0]["averaged"]),
    }


def evaluation_name(arguments: argparse.Namespace, models: Trained) -> str:
    """Returns the name of an evaluation's files: split or file, checkpoint, other models and
    overridden keys.
    """
    first, *others = models.checkpoints
    parts = [arguments.split or Path(arguments.source).name[:32]]
    if arguments.data:
        parts.append(f"of-{Path(arguments.data).name[:20]}")
    parts.append(f"step{first.step}")
    if len(first.averaged) > 1:
        parts.append(f"average{len(first.averaged)}")
    if others:
        parts.append(
            "with-" + "+".join(Path(checkpoint.workdir).name for checkpoint in others)[:20]
        )
    for key, value in sorted(arguments.overrides):  # of paths, the last part
        parts.append(
            key.rpartition(".")[-1] + "+".join(Path(part).name for part in value.split(","))[:60]
        )
    # File names have at most 255 bytes, and an ending and a number follow.
    return os.fsencode("-".join(parts))[:200].decode(errors="ignore")


def numbered(path: Path, evaluated: Mapping[str, Any]) -> Path:
    """Returns the path, with a number if it belongs to an evaluation of anything but `evaluated`."""
    evaluated = json.loads(json.dumps(evaluated))  # lists instead of tuples, as in the file
    for number in itertools.count(1):
        candidate = Path(f"{path}-{number}") if number > 1 else path
        try:
            result = json.loads(Path(f"{candidate}.json").read_text(encoding="utf-8"))
            known = {key: result[key] for key in evaluated}
            # which lacks keys that are newer
            known["decoding"] = evaluated["decoding"] | known["decoding"]
            if known == evaluated:
                return candidate
        except UNREADABLE:  # missing or damaged: it may be overwritten
            return candidate
