"""Kills a training run repeatedly, and verifies that its results are those of an uninterrupted run.

    python -m scripts.verify_resume --config=configs/quickstart.py --workdir=DIR --kills=20

Trains the config once without interruption, and again with SIGKILL at random moments. The kills aim at validation, the
writing of checkpoints, preparation and training in turn. Each comes 1 ms to 10 s after the start of such a phase, with
log-uniform delays, or at the end of the phase if that is earlier. The script compares digests of the last checkpoint's
parameters, optimizer state and progress, and of the record without timings. The exit code is 2 if anything differs.
"""

import argparse

from transformer import cli


def main(arguments: argparse.Namespace) -> None:
    from scripts.commands import verify_resume

    verify_resume.main(arguments)


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.verify_resume", __doc__, overrides="config")
    parser.add_argument(
        "--config", required=True, metavar="FILE.py[:ARG]", help="the configuration; it should save checkpoints often"
    )
    parser.add_argument("--workdir", required=True, metavar="DIR", help="a new folder for the runs")
    parser.add_argument("--kills", type=int, default=20, metavar="N", help="number of kills (20)")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
