"""Translates a split of the data, or any pair of files, with a trained model and scores the translations.

python -m transformer.evaluate --workdir=DIR [--split=test] [--checkpoint=best|last|STEP] [--average=N]
    [--source=FILE --reference=FILE] [--decoding.KEY=VALUE ...]

Prints one JSON object; it, the hypotheses and the references are written to the workdir's folder `evaluations`.
"""

import argparse
import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import logging

from transformer import cli, files
from transformer.checkpoints import trained
from transformer.checkpoints.trained import Trained
from transformer.data.sources import source as sources
from transformer.data.sources.lines import read_text_file
from transformer.decoding.bleu import bleu_language
from transformer.decoding.evaluation import Evaluation, evaluate_translations
from transformer.decoding.translator import Translator
from transformer.distributed.sharding import one_device
from transformer.errors import UserError
from transformer.progress_bar import bar


def main(arguments: argparse.Namespace) -> None:
    check_flags(arguments)
    models = trained.load(arguments.workdir, arguments.checkpoint, arguments.average, arguments.overrides)
    texts, references = read_texts(arguments, models)
    translator = Translator(models.graphs, models.tokenizer, models.config.decoding, n_best=1, mesh=one_device())
    logging.info("Translating %d sentences.", len(texts))
    with bar("Translating", len(texts)) as report:
        evaluation = evaluate_translations(
            translator, models.parameters, texts, references, bleu_language(models.config.data), report
        )
    print(json.dumps(save(arguments, models, references, evaluation)))


def check_flags(arguments: argparse.Namespace) -> None:
    """Raises UserError for flags that do not go together. Sets the split if nothing says what to translate."""
    pair = (arguments.source, arguments.reference)
    if (arguments.source is None) != (arguments.reference is None):
        raise UserError(f"--source={pair[0]} --reference={pair[1]}: give both files, or neither and a --split")
    if arguments.source is not None and arguments.split is not None:
        raise UserError(f"--split={arguments.split} --source={arguments.source}: give a split or two files, not both")
    if arguments.source is None and arguments.split is None:
        arguments.split = "test"


def read_texts(arguments: argparse.Namespace, models: Trained) -> tuple[list[str], list[str]]:
    """What to translate and the raw references. Raises UserError if there is nothing, or they differ in number."""
    if arguments.source is None:
        try:
            return sources.read_pairs(models.config.data, arguments.split)
        except UserError as error:
            raise UserError(f"{error}; or evaluate with files, by --source=FILE --reference=FILE") from error
    texts, references = (read_text_file(Path(name)) for name in (arguments.source, arguments.reference))
    if len(texts) != len(references):
        raise UserError(
            f"{arguments.source} has {len(texts)} lines and {arguments.reference} has {len(references)}: "
            "line N of one must translate line N of the other"
        )
    if not texts:
        raise UserError(f"--source={arguments.source}: is empty; give at least one sentence")
    return texts, references


def save(
    arguments: argparse.Namespace, models: Trained, references: Sequence[str], evaluation: Evaluation
) -> dict[str, Any]:
    """Writes hypotheses, references and the result, and returns the result. The same evaluation again replaces it."""
    folder = models.workdir.evaluations
    folder.mkdir(exist_ok=True)
    name = evaluation_name(arguments, models)
    hypotheses_path, references_path = folder / f"{name}.hypotheses.txt", folder / f"{name}.references.txt"
    first = models.checkpoints[0]
    result = dataclasses.asdict(evaluation.scores) | {
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
        "seconds": evaluation.seconds,
        "output_tokens_per_second": evaluation.output_tokens / evaluation.seconds,
    }
    files.write_text(hypotheses_path, "".join(f"{line}\n" for line in evaluation.hypotheses))
    files.write_text(references_path, "".join(f"{line}\n" for line in references))
    files.write_json(folder / f"{name}.json", result)
    return result


def evaluation_name(arguments: argparse.Namespace, models: Trained) -> str:
    """Of the files in `evaluations`: what was translated, by which checkpoints, with which settings changed."""
    first = models.checkpoints[0]
    # A name may have 255 bytes; a character of the source file's may be four of them.
    parts = [arguments.split or Path(arguments.source).name[:32], f"step{first.step}"]
    parts += [f"average{len(first.averaged)}"] if len(first.averaged) > 1 else []
    parts += [f"{key.removeprefix('decoding.')}{value}" for key, value in sorted(arguments.overrides)]
    if arguments.source is not None or len(models.checkpoints) > 1:
        # Files of one name in two folders, and ensembles of the same first workdir, are told apart.
        rest = [arguments.source, arguments.reference, arguments.workdir]
        parts.append(hashlib.sha256(json.dumps(rest).encode()).hexdigest()[:8])
    return "-".join(parts)


def make_parser() -> cli.Parser:
    parser = cli.Parser("transformer.evaluate", __doc__, overrides="decoding")
    command_flags(parser)
    parser.add_argument("--split", choices=sources.SPLITS, help="what to translate, of the run's own data (test)")
    parser.add_argument("--source", metavar="FILE", help="translate this file instead, a sentence a line")
    parser.add_argument("--reference", metavar="FILE", help="its reference translations")
    return parser


def command_flags(parser: cli.Parser) -> None:
    """The flags that say which models to decode with."""
    parser.add_argument("--workdir", metavar="DIR", required=True, help="of the run; DIR,DIR,... for an ensemble")
    parser.add_argument("--checkpoint", metavar="best|last|STEP", default="best", help="which one (best)")
    parser.add_argument("--average", metavar="N", type=int, default=1, help="mean of the N newest up to that one (1)")


if __name__ == "__main__":
    cli.run(make_parser(), main)
