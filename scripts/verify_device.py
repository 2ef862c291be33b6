"""Verifies the results of this machine's devices, and measures their speed.

    python -m scripts.verify_device [--quick] [--output=FOLDER] [--readme=docs/devices.md]

The checks compare
- a killed and resumed run with an uninterrupted run;
- matmuls, softmax, norms and attention on the first device with formulas in float64;
- loss and gradients of a small model, on each device and on each mesh of several devices, with loss
  and gradients on the host's CPU, computed operation by operation;
- the updates of the model and a beam search with the host's CPU.

A check fails if its error is above its bar, or its group ends early. The exit code is then 2. After
the checks the script measures training and decoding.

--quick measures only a small model. --output writes verification.json into a folder. --readme puts
the speeds of these devices into the table of a file.
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

# Functions that yield outcomes. Each runs in a separate process, which may crash.
GROUPS = {
    "a killed run": "scripts.verification.resume:check_resume",
    "formulas": "scripts.verification.numerics:check_all",
    "training": "scripts.verification.training:check_all",
    "search": "scripts.verification.search:check_search",
    "known faults of compilers": "scripts.verification.search:check_faults",
}
SPEED = "scripts.verification.speed:measure_all"


def main(arguments: argparse.Namespace) -> None:
    # These imports take seconds, and --help does not need them.
    from scripts.benchmarking.measurement import commit
    from scripts.verification.processes import EXACT, results_of
    from scripts.verification.report import HEADER, VerificationReport, cells, describe

    # Fail before the checks, which take minutes.
    if arguments.readme is not None and arguments.quick:
        raise UserError("--readme has no rows of --quick; leave one of them out")
    markdown.check_marks("devices", arguments.readme)
    if arguments.output is not None:
        arguments.output.mkdir(parents=True, exist_ok=True)

    ((devices, version),) = results_of(
        "scripts.verification.report:describe_devices", environment={}
    )
    report = VerificationReport(devices, version, commit(), outcomes={}, speeds=[])

    # The report is saved after every group, so that a crash of this process loses little.
    for group, function in GROUPS.items():
        print(group, flush=True)
        outcomes = report.outcomes.setdefault(group, [])
        for outcome in catch_errors(results_of(function, environment=EXACT)):
            outcomes.append(outcome)
            print(describe(outcome), flush=True)
        report.save(arguments.output)

    for result in catch_errors(results_of(SPEED, arguments.quick, environment={})):
        if isinstance(result, Outcome):  # the process has failed
            report.outcomes["speed"] = [result]
        else:
            report.speeds.append(result)
            logging.info("%s: %.1f ms.", result.task, 1e3 * result.seconds)
        report.save(arguments.output)

    # The verdict is the last line, and an error if a check has failed.
    print(markdown.table([HEADER, *map(cells, report.speeds)]))
    if arguments.readme is not None:
        report.publish(arguments.readme)
    if report.failed:
        raise UserError(report.verdict)
    print(report.verdict)


def catch_errors(results: Iterator[Any]) -> Iterator[Any]:
    """Yields the results. If an error ends them, yields an outcome that fails."""
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
