"""Translates standard input, one sentence a line, to standard output, in order. A language model continues the lines.

python -m transformer.translate --workdir=DIR [--checkpoint=best|last|STEP] [--average=N] [--n_best=N]
    [--format=text|jsonl] [--decoding.KEY=VALUE ...]

text: one line of output for each line of input. With --n_best=N above 1: N lines of NUMBER, SCORE and TEXT, separated
    by tabs, best first; score and text are empty where the search found fewer texts.
jsonl: one JSON object a line with the source and its translations: text, score, log-probability, and the tokens with
    their pieces and log-probabilities. A CTC search does not know the latter: they are 0 except at the end.

Lines that have come are translated when no more input is ready, so another program can write a line and wait for its
translation. --decoding.batch_tokens=1 makes single lines fast: batches have one row.
"""

import argparse
from typing import NoReturn

from transformer import cli


def main(arguments: argparse.Namespace) -> None:
    from transformer.commands import translate

    translate.main(arguments)


def make_parser() -> cli.Parser:
    parser = cli.Parser("transformer.translate", __doc__, overrides="decoding")
    parser.add_model_flags()
    parser.add_argument("--n_best", metavar="N", type=int, default=1, help="translations a line (1)")
    parser.add_argument("--format", choices=("text", "jsonl"), default="text", help="output format (text)")
    return parser


def command() -> NoReturn:
    cli.run(make_parser(), main)


if __name__ == "__main__":
    command()
