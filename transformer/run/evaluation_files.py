"""The result of an evaluation, and its files in the workdir's folder `evaluations`."""

import argparse
import dataclasses
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sacrebleu.metrics import CHRF

from transformer.checkpoints.loaded_models import LoadedModels
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


def make_path(arguments: argparse.Namespace, models: LoadedModels) -> Path:
    """Returns the path of the files, and creates their folder.

    Raises UserError if the folder cannot be written to.
    """
    folder = files.expand_user(arguments.output) if arguments.output else models.workdir.evaluations
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Fails before the translation rather than after it.
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        if error.errno in files.FULL_DISK:
            raise
        advice = "name another folder with --output=FOLDER"
        raise UserError(f"{folder}: cannot be written to ({error.strerror}); {advice}") from error
    return folder / evaluation_name(arguments, models)


def of_translations(
    arguments: argparse.Namespace,
    models: LoadedModels,
    path: Path,
    sources: Sequence[str],
    references: References,
    scored: ScoredTranslations,
    confidences: Sequence[float | None],
) -> EvaluationFiles:
    """Returns the evaluation of translations, with all texts and perhaps confidences.

    Repeating an evaluation overwrites its files.
    """
    # A split of another run's data is in "data", so that reports read only the run's own splits.
    split = arguments.split
    data = None
    if arguments.data:
        data = f"{split} of {arguments.data}"
        split = None
    model_facts = describe_models(models)
    identity = {
        "split": split,
        "data": data,
        "source": arguments.source,
        "reference": _one_or_list(arguments.reference),
        "source_language": models.config.data.source_language,
        "target_language": models.config.data.target_language,
        "models": model_facts["models"],
        "decoding": models.config.decoding.to_dict(),
    }
    path = numbered(path, identity)

    # Each text is a line in its file.
    sources, *references = (
        [" ".join(text.splitlines()) for text in texts] for texts in (sources, *references)
    )
    endings = ["references.txt"]
    endings += [f"references.{number}.txt" for number in range(2, len(references) + 1)]
    lines = {
        "sources.txt": sources,
        "hypotheses.txt": [best.text for best in scored.translations],
        **dict(zip(endings, references, strict=True)),
        "sentences.jsonl": sentence_lines(sources, references, scored.translations, confidences),
    }
    result = {
        **files.six_digits(scored.scores | scored.speed),
        **identity,
        "sentences": len(sources),
        **model_facts,
        "shortlist": None if models.shortlist is None else models.shortlist.fingerprint,
        "sources": f"{path}.sources.txt",
        "references": _one_or_list([f"{path}.{ending}" for ending in endings]),
        "hypotheses": f"{path}.hypotheses.txt",
        "sentence_scores": f"{path}.sentences.jsonl",
    }
    return EvaluationFiles(path, result, lines)


def sentence_lines(
    sources: list[str],
    references: References,
    translations: list[Translation],
    confidences: Sequence[float | None],
) -> list[str]:
    """Returns a line of JSON for each sentence.

    Lengths are in characters; `reference_length` is the length of the first reference.
    """
    # chrF is defined for sentences, unlike BLEU without smoothing.
    chrf = CHRF()
    lines = []
    for source, translation, *texts in zip(sources, translations, *references, strict=True):
        sentence = {
            "line": len(lines) + 1,
            "chrf": chrf.sentence_score(translation.text, texts).score,
            "score": translation.score,
            "source_length": len(source),
            "hypothesis_length": len(translation.text),
            "reference_length": len(texts[0]),
            "source": source,
            "hypothesis": translation.text,
            "references": texts,
        }
        if confidences:
            sentence["confidence"] = confidences[len(lines)]
        lines.append(json.dumps(files.six_digits(sentence), ensure_ascii=False))
    return lines


def _one_or_list(names: Sequence[str]) -> str | list[str] | None:
    """Returns the names, or the name itself if there is one, or None if there are none."""
    if len(names) > 1:
        return list(names)
    return names[0] if names else None


def describe_models(models: LoadedModels) -> dict[str, Any]:
    """Returns the checkpoints of all models, and facts about the first one."""
    first = models.checkpoints[0]
    return {
        "models": [dataclasses.asdict(checkpoint) for checkpoint in models.checkpoints],
        "step": first.step,
        "averaged": len(first.averaged),
    }


def evaluation_name(arguments: argparse.Namespace, models: LoadedModels) -> str:
    """Returns the name of an evaluation's files.

    For example "test-step4000-average5-beam_size8": the split or file, the checkpoint, the other
    models of an ensemble, and the overridden keys.
    """
    first, *rest = models.checkpoints
    parts = [arguments.split or Path(arguments.source).name[:32]]
    if arguments.data:
        parts.append(f"of-{Path(arguments.data).name[:20]}")
    parts.append(f"step{first.step}")
    if len(first.averaged) > 1:
        parts.append(f"average{len(first.averaged)}")
    if rest:
        names = "+".join(Path(checkpoint.workdir).name for checkpoint in rest)
        parts.append(f"with-{names[:20]}")
    for key, value in sorted(arguments.overrides):
        # Slashes are not allowed in names, so paths are reduced to their last part.
        names = "+".join(Path(part).name for part in value.split(","))
        parts.append(key.rpartition(".")[-1] + names[:60])
    # File names have at most 255 bytes, and an ending and a number follow.
    return os.fsencode("-".join(parts))[:200].decode(errors="ignore")


def numbered(path: Path, identity: Mapping[str, Any]) -> Path:
    """Returns the path, with a number if another evaluation already has it.

    Evaluations are the same if their results agree in all keys of `identity`.
    """
    identity = json.loads(json.dumps(identity))  # lists instead of tuples, as in the file
    # The first path that is free or has the same evaluation.
    candidate = path
    number = 1
    while True:
        try:
            result = json.loads(Path(f"{candidate}.json").read_text(encoding="utf-8"))
            existing = {key: result[key] for key in identity}
            # An old result lacks newer keys.
            existing["decoding"] = identity["decoding"] | existing["decoding"]
            # A repeated evaluation replaces its own files.
            if existing == identity:
                return candidate
        except UNREADABLE:  # missing or damaged: it may be overwritten
            return candidate
        number += 1
        candidate = Path(f"{path}-{number}")
