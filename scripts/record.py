"""Writes the records of complete runs: small JSON files behind published numbers.

    python -m scripts.record WORKDIR [WORKDIR ...] --output=records/NAME

A record has the resolved configuration, commit, package versions, devices, validations, evaluations
and digests of the data, but no paths of this machine. It replaces the workdir in scripts.report,
scripts.reproduce --report, scripts.directions and scripts.tables. A digest over its content shows
whether it was edited. The file of a run has the settings that differ from the first run, and the
seed: num_heads=1-seed0.json. A sweep's folder is replaced by its complete trials, which need no
evaluation because they have validations.

Repeating the command changes nothing, or adds new evaluations.
"""

import argparse
from pathlib import Path

from absl import logging

from transformer.config import cli
from transformer.support import files


def main(arguments: argparse.Namespace) -> None:
    from scripts.results.records import make_record, name_runs, read_results, write_record
    from scripts.results.runs import read_runs
    from scripts.sweeping.expansion import expand_sweeps

    runs = read_runs(expand_sweeps(arguments.workdirs), "WORKDIR")
    named = set(map(Path, arguments.workdirs))
    # All runs are checked before the first record is written.
    records = []
    for name, run in name_runs(runs).items():
        is_evaluated = any(run.workdir.evaluations.glob("*.json"))
        evaluations = read_results(run.path) if is_evaluated or run.path in named else []
        records.append(make_record(run, name, evaluations))

    output = Path(arguments.output)
    files.make_folder(output, "--output")
    for record in records:
        path = write_record(output, record)
        logging.info("%s: %d evaluations.", path, len(record["evaluations"]))


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.record", __doc__)
    parser.add_argument(
        "workdirs", nargs="+", metavar="WORKDIR", help="workdir of a run or a sweep"
    )
    parser.add_argument("--output", required=True, help="folder of the records, such as records/X")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
