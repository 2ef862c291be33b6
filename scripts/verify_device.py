"""Verifies that this machine's devices compute what they should, and measures how fast they are.

    python -m scripts.verify_device [--quick] [--output=FOLDER] [--readme=docs/devices.md]

Compares a killed and resumed run with an uninterrupted one; products, softmax, norms and attention
on the first device with formulas in float64; loss and gradients of a small model, on each device
and on each mesh of several, with those of the host's CPU, operation by operation; and its updates
and a beam search with those of the host's CPU. Then it measures training and decoding. The exit
code is 2 if a check fails: if its error is above its bar, or its group ends early.

--quick measures a small model only. --output writes verification.json into a folder. --readme puts the speeds of this
kind of device into the table of a file.
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from absl import logging

from scripts import markdown
from scripts.verification.outcomes import Outcome
from transformer.config import cli
from transformer.support.errors import UserError

# The functions that yield outcomes, each in a separate process, which may crash.
GROUPS = {
    "a killed run": "scripts.verification.resume:check_resume",
    "formulas": "scripts.verification.numerics:check_all",
    "training": "scripts.verification.training:check_all",
    "search": "scripts.verification.search:check_search",
    "known faults of compilers": "scripts.verification.search:check_faults",
}
SPEED = "scripts.verification.speed:measure_all"


def main(arguments: argparse.Namespace) -> None:
    # these imports take seconds, which --help should not
    from scripts.benchmarking.measurement import commit
    from scripts.verification.processes import EXACT, results_of
    from scripts.verification.report import HEADER, Report, cells, describe

    if arguments.readme is not None and arguments.quick:
        raise UserError("--readme has no rows of --quick; leave one of them out")
    markdown.check_marks("devices", arguments.readme)
    if arguments.output is not None:
        arguments.output.mkdir(parents=True, exist_ok=True)
    ((kind, version),) = results_of("scripts.verification.report:describe_devices", environment={})
    report = Report(kind, version, commit(), outcomes={}, speeds=[])
    for group, function in GROUPS.items():
        print(group, flush=True)
        results = report.outcomes.setdefault(group, [])
        for outcome in caught(results_of(function, environment=EXACT)):
            results.append(outcome)
            print(describe(outcome), flush=True)
        report.save(arguments.output)
    for measured in caught(results_of(SPEED, arguments.quick, environment={})):
        if isinstance(measured, Outcome):
            report.outcomes["speed"] = [measured]
        else:
            report.speeds.append(measured)
            logging.info("%s: %.1f ms.", measured.task, 1e3 * measured.seconds)
        report.save(arguments.output)
    print(markdown.table([HEADER, *map(cells, report.speeds)]))
    if arguments.readme is not None:
        report.publish(arguments.readme)
    if report.failed:
        raise UserError(report.verdict)
    print(report.verdict)


def caught(results: Iterator[Any]) -> Iterator[Any]:
    """Yields the results and, if an error ends them, an outcome that fails."""
    try:
        yield from results
    except UserError as error:
        yield Outcome(f"ended early ({error})", math.inf, 0.0)


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.verify_device", __doc__)
    parser.add_argument("--quick", action="store_true", help="measure a small model only")
    parser.add_argument("--output", type=Path, help="folder for verification.json")
    markdown.add_flag(parser)
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
