"""Compares evaluated runs: scores, differences with intervals and p-values, and the sentences that differ most.

    python -m scripts.compare WORKDIR_A WORKDIR_B ... [--split=valid] [--checkpoint=best|last|STEP] [--average=N]
        [--decoding.KEY=VALUE ...] [--evaluate] [--samples=N] [--sentences=N] [--format=text|json]

Runs that differ only in their seed are seeds of one system, and every other system is compared with the first. Each
workdir needs an evaluation of the split by transformer.evaluate; --evaluate makes those that are missing. If a workdir
has several, the flags that made one select it. An evaluation's .json file can replace a workdir, for example to compare
two evaluations of the same run.

`scripts/comparison/significance.py` documents intervals and p-values, `make_result` in `scripts/comparison/result.py`
the keys of the JSON object.
"""

import argparse
import json
import sys
from collections.abc import Sequence

from absl import logging

from scripts.comparison.choice import check_comparable, choose
from scripts.comparison.result import make_result
from scripts.comparison.text import make_text
from scripts.systems import System, group_systems
from transformer import cli, files
from transformer.data.sources import source as sources
from transformer.decoding.bleu import bleu_language
from transformer.errors import UserError

MIN_SAMPLES = 40  # the 95 % interval of so many leaves out one at each end


def main(arguments: argparse.Namespace) -> None:
    if len(arguments.workdirs) < 2:
        raise UserError(f"{arguments.workdirs[0]}: give at least two workdirs or evaluations to compare")
    if arguments.samples < MIN_SAMPLES:
        raise UserError(f"--samples={arguments.samples}: must be at least {MIN_SAMPLES}")
    if arguments.sentences < 0:
        raise UserError(f"--sentences={arguments.sentences}: must be at least 0")
    evaluations = choose(arguments)
    check_comparable(evaluations)
    first = evaluations[0]
    systems = group_systems(evaluations)
    warn_of_different_code(systems)
    logging.info("Scoring %d evaluations of %d sentences.", len(evaluations), len(first.references))
    language = bleu_language(first.config.data)
    result = make_result(systems, first.references, language, arguments.samples, arguments.sentences)
    text = make_text(result) if arguments.format == "text" else json.dumps(files.six_digits(result)) + "\n"
    # Bytes, since file names and sentences may have characters that the terminal's encoding lacks.
    sys.stdout.buffer.write(text.encode(errors="backslashreplace"))


def warn_of_different_code(systems: Sequence[System]) -> None:
    """Logs a warning if the seeds of one system ran different code. They remain one system."""
    for system in systems:
        if len(commits := {evaluation.commit for evaluation in system.evaluations}) > 1:
            logging.warning("System %s: its seeds ran different code, %s.", system.label, ", ".join(sorted(commits)))


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.compare", __doc__, overrides="decoding")
    parser.add_argument(
        "workdirs", nargs="+", metavar="WORKDIR", help="workdir of a run, or the .json file of an evaluation"
    )
    # Not test by default: test data are not for choosing among systems.
    parser.add_argument("--split", choices=sources.SPLITS, default="valid", help="the split to compare on (valid)")
    parser.add_argument("--checkpoint", metavar="best|last|STEP", help="evaluations of this checkpoint")
    parser.add_argument("--average", metavar="N", type=int, help="evaluations of the mean of N checkpoints")
    parser.add_argument("--evaluate", action="store_true", help="run transformer.evaluate where one is missing")
    parser.add_argument("--samples", metavar="N", type=int, default=1000, help="bootstrap resamples (1000)")
    parser.add_argument("--sentences", metavar="N", type=int, default=5, help="how many sentences to show (5)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="output format (text)")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
