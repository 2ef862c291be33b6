"""The files of an evaluation, in the workdir's folder `evaluations` or another one."""

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


class EvaluationFiles:
    """The files of the evaluation of some models with these flags. Repeating an evaluation overwrites them."""

    def __init__(self, arguments: argparse.Namespace, models: Trained, show: Callable[[dict[str, Any]], None]):
        """Creates the folder. Raises UserError, before the work, if it cannot be written to.

        `show` is called with the result, even if the files cannot be written.
        """
        self.arguments, self.models, self.show = arguments, models, show
        self.folder = files.expanded(arguments.output) if arguments.output else models.workdir.evaluations
        with self._writing(), tempfile.TemporaryFile(dir=self.folder):
            pass

    def save_translations(
        self, sources: Sequence[str], references: References, translated: ScoredTranslations
    ) -> dict[str, Any]:
        """Writes all texts and the result, shows the result, and returns it."""
        arguments, models = self.arguments, self.models
        described = describe_models(models)
        evaluated = {
            "split": None if arguments.data else arguments.split,  # of the run's own data, as reports need
            "data": f"{arguments.split} of {arguments.data}" if arguments.data else None,
            "source": arguments.source,
            "reference": _one_or_list(arguments.reference),
            "models": described["models"],
        }
        name = numbered_name(self.folder, evaluation_name(arguments, models), evaluated)
        sources, *references = ([" ".join(text.splitlines()) for text in texts] for texts in (sources, *references))
        kinds = ["references", *(f"references.{number}" for number in range(2, len(references) + 1))]
        texts = {"sources": sources, **dict(zip(kinds, references, strict=True)), "hypotheses": translated.hypotheses}
        paths = {kind: self.folder / f"{name}.{kind}.txt" for kind in texts}
        sentences = self.folder / f"{name}.sentences.jsonl"
        measured = translated.scores | {
            "seconds": translated.seconds,
            "compile_seconds": translated.compile_seconds,
            "output_tokens_per_second": translated.output_tokens / translated.seconds,
        }
        result = {
            **files.six_digits(measured),
            **evaluated,
            "sentences": len(sources),
            **described,
            "decoding": models.config.decoding.to_dict(),
            "shortlist": None if models.shortlist is None else models.shortlist.fingerprint,
            "sources": str(paths["sources"]),
            "references": _one_or_list([str(paths[kind]) for kind in kinds]),
            "hypotheses": str(paths["hypotheses"]),
            "sentence_scores": str(sentences),
        }
        contents = {paths[kind]: "".join(f"{line}\n" for line in texts[kind]) for kind in texts}
        contents[sentences] = "".join(sentence_lines(sources, references, translated.translations))
        self._save(contents, name, result)
        return result

    def save_means(self, means: Record) -> dict[str, Any]:
        """Does what `save_translations` does for the result of a language model on a split."""
        result = files.six_digits(means) | {"split": self.arguments.split} | describe_models(self.models)
        self._save({}, evaluation_name(self.arguments, self.models), result)
        return result

    def _save(self, contents: Mapping[Path, str], name: str, result: dict[str, Any]) -> None:
        """Writes the texts and NAME.json. Shows the result afterwards, or before it raises UserError if that fails."""
        try:
            with self._writing():
                for path, content in contents.items():
                    files.write_text(path, content)
                files.write_json(self.folder / f"{name}.json", result)
        finally:
            self.show(result)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Raises UserError if the block cannot write to the folder."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            yield
        except OSError as error:
            name = f"--output={self.arguments.output}" if self.arguments.output else self.folder
            raise UserError(
                f"{name}: cannot be written to ({error.strerror}); name another folder with --output=FOLDER"
            ) from error


def sentence_lines(
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
    parts += ["with-" + "+".join(Path(checkpoint.workdir).name for checkpoint in others)[:20]] if others else []
    parts += [f"{key.removeprefix('decoding.')}{value}" for key, value in sorted(arguments.overrides)]
    return "-".join(parts)


def numbered_name(folder: Path, name: str, evaluated: Mapping[str, Any]) -> str:
    """Returns the name, with a number if it belongs to an evaluation of other files or models than `evaluated`."""
    for candidate in itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2))):
        try:
            result = json.loads((folder / f"{candidate}.json").read_text(encoding="utf-8"))
            is_same = json.dumps({key: result[key] for key in evaluated}) == json.dumps(evaluated)
        except UNREADABLE:  # missing or damaged: it may be overwritten
            is_same = True
        if is_same:
            return candidate
