"""The flags --scores and --scorer, for the metrics of other programs."""

import argparse


def add_flags(parser: argparse.ArgumentParser, scores: bool = False) -> None:
    """Adds the flag --scorer, and with `scores` the flag --scores."""
    if scores:
        parser.add_argument(
            "--scores",
            metavar="NAME:FILE,...",
            action="append",
            default=[],
            help="scores of another program: a file for each evaluation, with a number for each "
            "translation; NAME,lower: lower is better; repeatable",
        )
    parser.add_argument(
        "--scorer",
        metavar="NAME:COMMAND",
        action="append",
        default=[],
        help="score with a command that prints a number for each line of the files {source}, "
        "{reference} and {hypothesis}; NAME,lower: lower is better; repeatable",
    )
