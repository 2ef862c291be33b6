"""Translates a split of the data, or any pair of files, with a trained model and scores the translations.

python -m transformer.evaluate --workdir=DIR [--split=test] [--data=WORKDIR] [--checkpoint=best|last|STEP] [--average=N]
    [--source=FILE --reference=FILE ...] [--output=FOLDER] [--decoding.KEY=VALUE ...]

Prints the result as one JSON object, whose keys docs/experiments.md explains, and logs the scores in words. The result,
the sources, the references and the hypotheses are written to the workdir's folder `evaluations`, or to --output=FOLDER.
--data=WORKDIR translates the split of another run's data. A language model has no hypotheses: its result is the
perplexity.
"""

import argparse
from typing import NoReturn

from transformer import cli
from transformer.data.sources.source import SPLITS


def main(arguments: argparse.Namespace) -> None:
    from transformer.commands import evaluate

    evaluate.main(arguments)


def make_parser() -> cli.Parser:
    parser = cli.Parser("transformer.evaluate", __doc__, overrides="decoding")
    parser.add_model_flags()
    parser.add_argument("--split", choices=SPLITS, help="the split of the run's data to translate (test)")
    parser.add_argument("--data", metavar="WORKDIR", help="another run, whose split is translated instead")
    parser.add_argument("--source", metavar="FILE", help="a file to translate instead, one sentence a line")
    parser.add_argument(
        "--reference", metavar="FILE", action="append", default=[], help="its reference translations; may be repeated"
    )
    parser.add_argument("--output", metavar="FOLDER", help="the folder of the files (evaluations in the workdir)")
    return parser


def command() -> NoReturn:
    cli.run(make_parser(), main)


if __name__ == "__main__":
    command()
