"""Draws the trace of `transformer.train --profile=FROM:TO`: steps and waits of the training loop, and busy devices.

python -m scripts.draw_profile --workdir=DIR --output=FILE.svg
"""

import argparse
from typing import NoReturn

from transformer import cli


def main(arguments: argparse.Namespace) -> None:
    from scripts.commands import draw_profile

    draw_profile.main(arguments)


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.draw_profile", __doc__)
    parser.add_argument("--workdir", metavar="DIR", required=True, help="of a run with a trace; the newest is drawn")
    parser.add_argument("--output", metavar="FILE", required=True, help="the SVG file to write")
    return parser


def command() -> NoReturn:
    cli.run(make_parser(), main)


if __name__ == "__main__":
    command()
