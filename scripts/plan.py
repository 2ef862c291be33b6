"""Estimates memory and time of a run on accelerators, which need not be present.

    python -m scripts.plan --config=configs/X.py[:ARG] --device=NAME[:SIZE] [--search]
        [--workdir=DIR] [--lengths=PAIRS:SOURCE:TARGET] [--format=json]
        [--config.GROUP.KEY=VALUE ...]

Compiles the step of the config for the devices, such as h100:8 or v5e:4x4. Prints its memory and a
lower bound on its time, with the costliest kernels and collectives. The batches are the ones of the
run in --workdir, or of data with the lengths of --lengths, by default WMT14 English-German's. With
--search, estimates the translation of these sentences instead of the training. XLA's compilers for
accelerators are needed: see docs/devices.md.
"""

import argparse
import json
from pathlib import Path

from transformer.config import cli
from transformer.config.loading import load_file
from transformer.support import files
from transformer.support.errors import UserError


def main(arguments: argparse.Namespace) -> None:
    config = load_file(arguments.config, arguments.overrides)
    from scripts.planning import devices, lengths, report

    target = devices.parse_target(arguments.device)
    target_devices = devices.find_devices(target)
    if arguments.workdir is None:
        data = lengths.assume(config, arguments.lengths)
    else:
        data = lengths.read(config, Path(arguments.workdir))

    estimate = report.estimate_search if arguments.search else report.estimate_training
    result = estimate(config, target, target_devices, data)
    if arguments.format == "json":
        print(json.dumps(files.six_digits(result.values)))
    else:
        print(*result.lines, sep="\n")
    # The report is printed anyway: it shows the parts of the memory.
    if result.failure:
        raise UserError(result.failure)


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.plan", __doc__, overrides="config")
    parser.add_argument(
        "--config", required=True, metavar="FILE[:ARG]", help="a file of configs/, or a config.json"
    )
    parser.add_argument(
        "--device", required=True, metavar="NAME[:SIZE]", help="the devices: h100:8, v5e:4x4"
    )
    data = parser.add_mutually_exclusive_group()
    data.add_argument("--workdir", help="a run, for its data and vocabulary")
    data.add_argument(
        "--lengths",
        metavar="PAIRS:SOURCE:TARGET",
        help="training pairs, mean tokens of both sides (WMT14 en-de)",
    )
    parser.add_argument(
        "--search", action="store_true", help="estimate the translation of the data's sentences"
    )
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="output format (text)"
    )
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
