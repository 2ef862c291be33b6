"""Verifies that this machine's devices compute what they should, and measures how fast they are.

    python -m scripts.verify_device [--quick] [--output=FOLDER] [--readme=docs/devices.md]

Compares products, softmax, norms and attention with float64 on the host; loss and gradients of a small model with the
same computed operation by operation; its training and beam search with those of the host's CPU; and a killed and
resumed run with an uninterrupted one. With several devices, each mesh of them computes the gradients too. Then it
measures training and decoding. The exit code is 2 if a check fails, whose error is then above its bar.

--quick measures a small model only. --output writes verification.json into a folder. --readme puts the row of this
kind of device into the table of a file.
"""

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from absl import logging

from scripts.verification.outcomes import Outcome
from transformer import cli, files
from transformer.errors import UserError

# The functions that yield outcomes, each in a separate process, which may crash.
GROUPS = {
    "a killed run": "scripts.verification.resume:check_resume",
    "formulas": "scripts.verification.numerics:check_all",
    "training": "scripts.verification.training:check_all",
    "search": "scripts.verification.search:check_search",
    "known faults of compilers": "scripts.verification.search:check_faults",
}
SPEED = "scripts.verification.speed:measure_all"
T = TypeVar("T")


def main(arguments: argparse.Namespace) -> None:
    from scripts import markdown  # these imports take seconds, which --help should not
    from scripts.verification import report
    from scripts.verification.processes import EXACT, results_of

    ((kind, version),) = results_of("scripts.verification.report:describe_devices", environment={})
    outcomes, speeds = {}, []
    for name, function in GROUPS.items():
        print(name, flush=True)
        outcomes[name] = []
        for outcome in caught(results_of(function, environment=EXACT)):
            outcomes[name].append(outcome)
            print(report.describe(outcome), flush=True)
    for measured in caught(results_of(SPEED, arguments.quick, environment={})):
        if isinstance(measured, Outcome):
            outcomes["speed"] = [measured]
            continue
        logging.info("%s: %.1f ms.", measured.task, 1e3 * measured.seconds)
        speeds.append(measured)
    print(markdown.table([report.HEADER, *map(report.cells, speeds)]))
    verified = report.Report(kind, version, outcomes, speeds)
    if arguments.output is not None:
        folder = Path(arguments.output)
        folder.mkdir(parents=True, exist_ok=True)
        content = json.dumps(files.six_digits(verified.to_json()), indent=1)
        files.write_text(folder / "verification.json", content + "\n")
    if arguments.readme is not None:
        verified.publish(arguments.readme)
    if verified.failed:
        raise UserError(verified.verdict)
    print(verified.verdict)


def caught(results: Iterator[T]) -> Iterator[T | Outcome]:
    """Yields the results and, if an error ends them, an outcome that fails."""
    try:
        yield from results
    except UserError as error:
        yield Outcome(f"ended with an error ({error})", math.inf, 0.0)


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.verify_device", __doc__)
    parser.add_argument("--quick", action="store_true", help="measure a small model only")
    parser.add_argument("--output", metavar="FOLDER", help="folder for verification.json")
    parser.add_argument("--readme", metavar="FILE", help="Markdown file whose table gets the row, between its marks")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
