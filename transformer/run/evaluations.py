"""The files of evaluations, in the workdir's folder `evaluations` or another one."""

import argparse
import contextlib
import dataclasses
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer import files
from transformer.checkpoints.trained import Trained
from transformer.decoding.bleu import References, sentence_chrf
from transformer.decoding.evaluation import ScoredTranslations
from transformer.decoding.translation import Translation
from transformer.errors import UNREADABLE, UserError
from transformer.training.metrics import Record

Show = Callable[[dict[str, Any]], None]


def check_writable(arguments: argparse.Namespace, models: Trained) -> None:
    """Creates the folder for the files. Raises UserError, before the work, if they cannot be written there."""
    with _writing(arguments, models) as folder, tempfile.TemporaryFile(dir=folder):
        pass


@contextlib.contextmanager
def _writing(arguments: argparse.Namespace, models: Trained) -> Iterator[Path]:
    """Yields the folder for the files. Raises UserError if the block cannot write to it."""
    folder = _folder(arguments, models)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    except OSError as error:
        name = f"--output={arguments.output}" if arguments.output else folder
        raise UserError(
            f"{name}: cannot be written to ({error.strerror}); name another folder with --output=FOLDER"
        ) from error


def _folder(arguments: argparse.Namespace, models: Trained) -> Path:
    return files.expanded(arguments.output) if arguments.output else models.workdir.evaluations


def save_translations(
    arguments: argparse.Namespace,
    models: Trained,
    sources: Sequence[str],
    references: References,
    translated: ScoredTranslations,
    show: Show,
) -> dict[str, Any]:
    """Writes all texts and the result, shows the result, and returns it. Repeating an evaluation overwrites it."""
    folder = _folder(arguments, models)
    described = describe_models(models)
    evaluated = {
        "split": None if arguments.data else arguments.split,  # of the run's own data, as reports need
        "data": f"{arguments.split} of {arguments.data}" if arguments.data else None,
        "source": arguments.source,
        "reference": _one_or_list(arguments.reference),
        "models": described["models"],
    }
    name = numbered_name(folder, evaluation_name(arguments, models), evaluated)
    sources, *references = ([" ".join(text.splitlines()) for text in texts] for texts in (sources, *references))
    kinds = ["references", *(f"references.{number}" for number in range(2, len(references) + 1))]
    texts = {"sources": sources, **dict(zip(kinds, references, strict=True)), "hypotheses": translated.hypotheses}
    paths = {kind: folder / f"{name}.{kind}.txt" for kind in texts}
    sentences = folder / f"{name}.sentences.jsonl"
    measured = translated.scores | {
        "seconds": translated.seconds,
        "compile_seconds": translated.compile_seconds,
        "output_tokens_per_second": translated.output_tokens / translated.seconds,
    }
    result = (
        files.six_digits(measured)
        | evaluated
        | {
            "sentences": len(sources),
            **described,
            "decoding": models.config.decoding.to_dict(),
            "shortlist": None if models.shortlist is None else models.shortlist.fingerprint,
            "sources": str(paths["sources"]),
            "references": _one_or_list([str(paths[kind]) for kind in kinds]),
            "hypotheses": str(paths["hypotheses"]),
            "sentence_scores": str(sentences),
        }
    )
    contents = {paths[kind]: "".join(f"{line}\n" for line in texts[kind]) for kind in texts}
    contents[sentences] = "".join(_sentence_lines(sources, references, translated.translations))
    _save(arguments, models, contents, name, result, show)
    return result


def _sentence_lines(
    sources: Sequence[str], references: References, translations: Sequence[Translation]
) -> Iterator[str]:
    """Yields a line of JSON for each sentence. Lengths are in characters; the reference is the first one."""
    chrf = sentence_chrf([translation.text for translation in translations], references)
    rows = zip(sources, translations, chrf, *references, strict=True)
    for line, (source, translation, score, *known) in enumerate(rows, start=1):
        sentence = {
            "line": line,
            "chrf": score,
            "score": translation.score,
            "source_length": len(source),
            "hypothesis_length": len(translation.text),
            "reference_length": len(known[0]),
            "source": source,
            "hypothesis": translation.text,
            "references": known,
        }
        yield json.dumps(files.six_digits(sentence), ensure_ascii=False) + "\n"


def save_means(arguments: argparse.Namespace, models: Trained, means: Record, show: Show) -> dict[str, Any]:
    """Does what `save_translations` does for the result of a language model on a split."""
    result = files.six_digits(means) | {"split": arguments.split} | describe_models(models)
    _save(arguments, models, {}, evaluation_name(arguments, models), result, show)
    return result


def _save(
    arguments: argparse.Namespace,
    models: Trained,
    contents: Mapping[Path, str],
    name: str,
    result: dict[str, Any],
    show: Show,
) -> None:
    """Writes the texts and NAME.json. Shows the result afterwards, or before it raises UserError if that fails."""
    try:
        with _writing(arguments, models) as folder:
            for path, content in contents.items():
                files.write_text(path, content)
            files.write_json(folder / f"{name}.json", result)
    finally:
        show(result)


def _one_or_list(names: Sequence[str]) -> str | list[str] | None:
    """Returns the only name, as all results had it before they could have several references; None for no names."""
    return list(names) if len(names) > 1 else next(iter(names), None)


def describe_models(models: Trained) -> dict[str, Any]:
    """Returns the checkpoints of all models, and the first one's step and number of averaged checkpoints."""
    first = models.checkpoints[0]
    described = [dataclasses.asdict(checkpoint) for checkpoint in models.checkpoints]
    return {"models": described, "step": first.step, "averaged": len(first.averaged)}


def evaluation_name(arguments: argparse.Namespace, models: Trained) -> str:
    """Returns the name of an evaluation's files: split or file, checkpoint, other models and overridden keys."""
    first, *others = models.checkpoints
    # File names have at most 255 bytes, and a character can have four.
    parts = [arguments.split or Path(arguments.source).name[:32]]
    parts += [f"of-{Path(arguments.data).name[:20]}"] if arguments.data else []
    parts += [f"step{first.step}"]
    parts += [f"average{len(first.averaged)}"] if len(first.averaged) > 1 else []
    parts += ["with-" + "+".join(Path(each.workdir).name for each in others)[:20]] if others else []
    parts += [f"{key.removeprefix('decoding.')}{value}" for key, value in sorted(arguments.overrides)]
    return "-".join(parts)


def numbered_name(folder: Path, name: str, evaluated: Mapping[str, Any]) -> str:
    """Returns the name, with a number if it belongs to an evaluation of other files or models.

    Args:
      evaluated: the split, the data, the files and the models, as in the result.
    """
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(each for each in names if not is_other_evaluation(folder / f"{each}.json", evaluated))


def is_other_evaluation(path: Path, evaluated: Mapping[str, Any]) -> bool:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return json.dumps({key: found[key] for key in evaluated}) != json.dumps(evaluated)
    except UNREADABLE:  # missing or damaged: it may be overwritten
        return False
