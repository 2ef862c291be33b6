"""Evaluates a model of several languages in all directions, and shows a matrix of scores.

python -m scripts.directions --workdir=DIR --languages=en,de,fr [--split=test] [--metric=bleu] [--checkpoint=...]
    [--average=N] [--decoding.KEY=VALUE ...]

Reads the files STEM.LANG of the split in the run's data folder. Directions that the run was not trained on are marked
with a star. Prints the results as one JSON object, as transformer.evaluate writes them to the workdir.
"""

import argparse
import itertools
import json

from transformer import cli
from transformer.config_types import Config
from transformer.data.sources import source
from transformer.data.sources.mixture import parse
from transformer.errors import UserError


def main(arguments: argparse.Namespace) -> None:
    from pathlib import Path  # these imports take seconds, which --help should not

    from rich.console import Console
    from rich.table import Table

    from transformer import evaluate
    from transformer.decoding.bleu import METRICS
    from transformer.workdir import open_existing

    if arguments.metric not in METRICS:
        raise UserError(f"--metric={arguments.metric}: must be one of {', '.join(METRICS)}")
    config = open_existing(Path(arguments.workdir))[1]
    languages = [code.strip() for code in arguments.languages.split(",")]
    if len(set(languages)) < max(2, len(languages)) or not all(languages):
        raise UserError(f"--languages={arguments.languages}: must be two or more codes, each once: en,de,fr")
    trained, scores = training_directions(config.data), {}
    for pair in itertools.permutations(languages, 2):
        given = {name: getattr(arguments, name) for name in ("workdir", "split", "checkpoint", "average")}
        given |= dict(zip(cli.LANGUAGES, pair, strict=True))
        flags = [f"--{name}={value}" for name, value in given.items()]
        flags += [f"--{key}={value}" for key, value in arguments.overrides]
        evaluation = evaluate.evaluate(evaluate.make_parser().parse(flags))
        evaluation.save()
        scores[pair] = evaluation.result
    table = Table("from", *(f"to {code}" for code in languages))
    for code in languages:
        cells = [_cell(scores.get((code, other)), arguments.metric, (code, other) in trained) for other in languages]
        table.add_row(code, *cells)
    Console(stderr=True).print(table)
    print(json.dumps({f"{first}-{second}": result for (first, second), result in scores.items()}))


def training_directions(data: Config) -> set[tuple[str, str]]:
    """Returns the pairs of languages of the training corpora."""
    parts = [parse(number, text) for number, text in enumerate(data.mixture, start=1)] or [{}]
    return {tuple(part.get(name, data[name]) for name in cli.LANGUAGES) for part in parts}


def _cell(result: dict | None, metric: str, is_trained: bool) -> str:
    return "" if result is None else f"{result[metric]:.1f}{'' if is_trained else ' *'}"


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.directions", __doc__, overrides="decoding")
    parser.add_model_flags(rerank=True)
    parser.add_argument("--languages", metavar="CODE,CODE,...", required=True, help="all languages")
    parser.add_argument("--split", choices=source.SPLITS, default="test", help="the split to translate (test)")
    parser.add_argument("--metric", default="bleu", help="the score in the matrix (bleu)")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
