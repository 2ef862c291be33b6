"""Copies the JSON of transformer.evaluate to standard output, and fails if a score in it is too low.

Example:   python -m transformer.evaluate --workdir=runs/quickstart | python -m scripts.require_score bleu 97
"""

import argparse
import json
import sys

from transformer import cli
from transformer.errors import MALFORMED, UserError


def main(arguments: argparse.Namespace) -> None:
    text = sys.stdin.read()
    sys.stdout.write(text)
    try:
        value = json.loads(text)[arguments.score]
    except MALFORMED as error:
        raise UserError(f"standard input: must be JSON with the key {arguments.score} ({error})") from None
    if value < arguments.least:
        raise UserError(f"{arguments.score} is {value}, must be at least {arguments.least}")


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.require_score", __doc__)
    parser.add_argument("score", help="key of the JSON, such as bleu")
    parser.add_argument("least", type=float, help="the lowest value that passes")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
