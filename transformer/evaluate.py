"""Translates a split of the data, or any pair of files, with a trained model and scores the translations.

python -m transformer.evaluate --workdir=DIR [--split=test] [--checkpoint=best|last|STEP] [--average=N]
    [--source=FILE --reference=FILE] [--decoding.KEY=VALUE ...]

Prints the result as one JSON object and logs the scores in words. The result, the hypotheses and the references are
written to the workdir's folder `evaluations`.
"""

import argparse
import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import logging

from transformer import cli, files
from transformer.checkpoints import trained
from transformer.checkpoints.trained import Trained
from transformer.data.sources import source
from transformer.data.sources.lines import read_text_file
from transformer.decoding.bleu import bleu_language
from transformer.decoding.evaluation import ScoredTranslations, translate_and_score
from transformer.decoding.translator import Translator
from transformer.distributed.mesh import one_device
from transformer.errors import UserError
from transformer.progress_bar import bar


def main(arguments: argparse.Namespace) -> None:
    check_flags(arguments)
    models = trained.load(arguments.workdir, arguments.checkpoint, arguments.average, arguments.overrides)
    texts, references = read_texts(arguments, models)
    translator = Translator(models.graphs, models.tokenizer, models.config.decoding, n_best=1, mesh=one_device())
    logging.info("Translating %d sentences.", len(texts))
    with bar("Translating", len(texts)) as report:
        translated = translate_and_score(
            translator, models.parameters, texts, references, bleu_language(models.config.data), report
        )
    result = save(arguments, models, references, translated)
    log_scores(result)
    print(json.dumps(result))


def check_flags(arguments: argparse.Namespace) -> None:
    """Sets the split to test if neither it nor files are given. Raises UserError for flags that exclude each other."""
    pair = (arguments.source, arguments.reference)
    if (arguments.source is None) != (arguments.reference is None):
        raise UserError(f"--source={pair[0]} --reference={pair[1]}: give both files, or neither and a --split")
    if arguments.source is not None and arguments.split is not None:
        raise UserError(f"--split={arguments.split} --source={arguments.source}: give a split or two files, not both")
    if arguments.source is None and arguments.split is None:
        arguments.split = "test"


def read_texts(arguments: argparse.Namespace, models: Trained) -> tuple[list[str], list[str]]:
    """Returns the source texts and the raw references. Raises UserError if there are none or their numbers differ."""
    if arguments.source is None:
        try:
            return source.read_pairs(models.config.data, arguments.split)
        except UserError as error:
            raise UserError(f"{error}; or evaluate files with --source=FILE --reference=FILE") from error
    texts, references = (read_text_file(Path(name)) for name in (arguments.source, arguments.reference))
    if len(texts) != len(references):
        raise UserError(
            f"{arguments.source} has {len(texts)} lines and {arguments.reference} has {len(references)}: "
            "line N of one must translate line N of the other"
        )
    if not texts:
        raise UserError(f"--source={arguments.source}: the file is empty; give at least one sentence")
    return texts, references


def save(
    arguments: argparse.Namespace, models: Trained, references: Sequence[str], translated: ScoredTranslations
) -> dict[str, Any]:
    """Writes hypotheses, references and the result, and returns the result. Repeating an evaluation overwrites it."""
    folder = models.workdir.evaluations
    folder.mkdir(exist_ok=True)
    name = evaluation_name(arguments, models)
    hypotheses_path, references_path = folder / f"{name}.hypotheses.txt", folder / f"{name}.references.txt"
    first = models.checkpoints[0]
    result = dataclasses.asdict(translated.scores) | {
        "sentences": len(references),
        "split": arguments.split,
        "source": arguments.source,
        "reference": arguments.reference,
        "step": first.step,
        "averaged": len(first.averaged),
        "models": [dataclasses.asdict(checkpoint) for checkpoint in models.checkpoints],
        "decoding": models.config.decoding.to_dict(),
        "hypotheses": str(hypotheses_path),
        "references": str(references_path),
        "seconds": translated.seconds,
        "output_tokens_per_second": translated.output_tokens / translated.seconds,
    }
    files.write_text(hypotheses_path, "".join(f"{line}\n" for line in translated.hypotheses))
    files.write_text(references_path, "".join(f"{line}\n" for line in references))
    files.write_json(folder / f"{name}.json", result)
    return result


def log_scores(result: Mapping[str, Any]) -> None:
    """Logs the scores for a person to read."""
    logging.info(
        "%s: BLEU %.2f (lower-cased and tokenized %.2f), chrF %.2f, exact match %.1f %%.",
        *(result["split"] or result["source"], result["bleu"], result["bleu_lowercase_tokenized"], result["chrf"]),
        100 * result["exact_match"],
    )
    logging.info(
        "%d sentences in %.1f s, %.0f tokens/s, with the checkpoint of step %d%s.",
        *(result["sentences"], result["seconds"], result["output_tokens_per_second"], result["step"]),
        f", the mean of {result['averaged']}" if result["averaged"] > 1 else "",
    )
    logging.info("Translations: %s", result["hypotheses"])


def evaluation_name(arguments: argparse.Namespace, models: Trained) -> str:
    """Returns the name of an evaluation's files: the split or file, the checkpoints and the overridden keys."""
    first = models.checkpoints[0]
    # File names have at most 255 bytes, and a character can have four.
    parts = [arguments.split or Path(arguments.source).name[:32], f"step{first.step}"]
    parts += [f"average{len(first.averaged)}"] if len(first.averaged) > 1 else []
    parts += [f"{key.removeprefix('decoding.')}{value}" for key, value in sorted(arguments.overrides)]
    if arguments.source is not None or len(models.checkpoints) > 1:
        # A hash distinguishes files of one name in two folders, and ensembles with the same first workdir.
        rest = [arguments.source, arguments.reference, arguments.workdir]
        parts.append(hashlib.sha256(json.dumps(rest).encode()).hexdigest()[:8])
    return "-".join(parts)


def make_parser() -> cli.Parser:
    parser = cli.Parser("transformer.evaluate", __doc__, overrides="decoding")
    parser.add_model_flags()
    parser.add_argument("--split", choices=source.SPLITS, help="the split of the run's data to translate (test)")
    parser.add_argument("--source", metavar="FILE", help="a file to translate instead, one sentence a line")
    parser.add_argument("--reference", metavar="FILE", help="its reference translations")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
