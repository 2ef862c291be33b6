"""Writes the mean of a run's last checkpoints as the checkpoint of a new workdir.

python -m scripts.average --workdir=DIR [--average=N] [--checkpoint=best|last|STEP] [--output=DIR]

All commands take the new workdir (`transformer.evaluate --workdir=DIR-average5`), and so does `training.init_from`. It
has the configuration, vocabularies and record of the run, and one checkpoint: the parameters that the run has with
`--average=N`, without an optimizer. The run itself is only read, so it resumes and keeps its checkpoints as before.
"""

import argparse

from transformer import cli


def main(arguments: argparse.Namespace) -> None:
    from scripts.commands import average

    average.main(arguments)


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.average", __doc__)
    parser.add_argument("--workdir", required=True, metavar="DIR", help="workdir of the run")
    parser.add_argument("--average", type=int, metavar="N", help="number of checkpoints (checkpoint.keep of the run)")
    parser.add_argument("--checkpoint", default="last", metavar="best|last|STEP", help="the last of them (last)")
    parser.add_argument("--output", metavar="DIR", help="the new workdir (DIR-averageN beside the run)")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
