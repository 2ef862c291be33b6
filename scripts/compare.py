"""Says which of several runs is better, by how much, how sure that is, and where they differ.

    python -m scripts.compare WORKDIR_A WORKDIR_B ... [--split=valid] [--average=N] [--decoding.KEY=VALUE ...]
        [--samples=N] [--sentences=N] [--format=text|json]

Runs that differ in nothing but their seed are seeds of one system; if they were run with different code, a warning says
so. Each other system is compared with the first. What is compared was translated before, by transformer.evaluate. If a
workdir has several evaluations of the split, the flags that made one choose it; without them it is the one with the
settings that all workdirs have one with, or with the run's own. The .json file of an evaluation may stand for a
workdir, so that two evaluations of one run can be compared.

How intervals and p-values are found: `scripts.comparison.significance`. The keys of the JSON object:
`scripts.comparison.result.make_result`.
"""

import argparse
import json
import sys
from collections.abc import Sequence

from absl import logging

from scripts.comparison import systems
from scripts.comparison.choice import SPLIT, Evaluation, choose
from scripts.comparison.result import make_result
from scripts.comparison.text import make_text
from transformer import cli
from transformer.data.sources import source as sources
from transformer.decoding.bleu import bleu_language
from transformer.errors import UserError

LEAST_SAMPLES = 40  # of which an interval of 95 % leaves out one at either end


def main(arguments: argparse.Namespace) -> None:
    check_flags(arguments)
    evaluations = choose(arguments)
    check_comparable(evaluations)
    first = evaluations[0]
    language = bleu_language(first.config.data)
    found = systems.group(evaluations)
    warn_of_code(found)
    logging.info("Scoring %d evaluations of %d sentences.", len(evaluations), len(first.references))
    result = make_result(found, first.references, language, arguments.samples, arguments.sentences)
    text = make_text(result) if arguments.format == "text" else json.dumps(result) + "\n"
    # As bytes: names of files and text of any kind, whatever the terminal's encoding.
    sys.stdout.buffer.write(text.encode(errors="backslashreplace"))


def check_flags(arguments: argparse.Namespace) -> None:
    """Raises UserError for what no comparison can be made with."""
    if sys.stdout is None:
        raise UserError("standard output is closed; the comparison is written to it")
    if len(arguments.workdirs) < 2:
        raise UserError(f"{arguments.workdirs[0]}: give at least two workdirs or evaluations to compare")
    if arguments.samples < LEAST_SAMPLES:
        raise UserError(f"--samples={arguments.samples}: must be at least {LEAST_SAMPLES}")
    if arguments.sentences < 0:
        raise UserError(f"--sentences={arguments.sentences}: must be at least 0")


def check_comparable(evaluations: Sequence[Evaluation]) -> None:
    """Raises UserError unless these are different evaluations of the same text."""
    first, paths = evaluations[0], set()
    for each in evaluations:
        both = f"{first.path} and {each.path}"
        if each.path.resolve() in paths:
            raise UserError(f"{each.path}: is given twice; name it once")
        paths.add(each.path.resolve())
        if each.saved["split"] != first.saved["split"]:
            raise UserError(f"{both}: are of different splits, {first.saved['split']} and {each.saved['split']}")
        if len(each.references) != len(first.references):
            counts = f"{len(first.references)} and {len(each.references)} sentences"
            raise UserError(f"{both}: have {counts}, must have the same references")
        for number, pair in enumerate(zip(first.references, each.references, strict=True), 1):
            if pair[0] != pair[1]:
                raise UserError(f"{both}: have different references, must have the same; line {number} is the first")
        languages = [bleu_language(evaluation.config.data) for evaluation in (first, each)]
        if languages[0] != languages[1]:
            raise UserError(f"{both}: are in different languages, {languages[0]} and {languages[1]}")


def warn_of_code(found: Sequence[systems.System]) -> None:
    """Seeds of a system are pooled whatever the code that they were run with."""
    for system in found:
        if len(commits := {evaluation.commit for evaluation in system.evaluations}) > 1:
            logging.warning("System %s: seeds run with different code, %s.", system.label, ", ".join(sorted(commits)))


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.compare", __doc__, overrides="decoding")
    parser.add_argument("workdirs", nargs="+", metavar="WORKDIR", help="of an evaluated run, or an evaluation's .json")
    parser.add_argument("--split", choices=sources.SPLITS, help=f"which evaluations ({SPLIT})")
    parser.add_argument("--average", metavar="N", type=int, help="those of the mean of N checkpoints")
    parser.add_argument("--samples", metavar="N", type=int, default=1000, help="resamples of the bootstrap (1000)")
    parser.add_argument("--sentences", metavar="N", type=int, default=5, help="that differ most, to show (5)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="of the output (text)")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
