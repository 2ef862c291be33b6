"""Estimates memory and time of a training run on accelerators, none of which has to be present.

    python -m scripts.plan --config=configs/X.py[:ARG] --device=NAME[:SIZE] [--workdir=DIR]
        [--lengths=PAIRS:SOURCE:TARGET] [--format=json] [--config.GROUP.KEY=VALUE ...]

Compiles the step of the config for the devices, such as h100:8 or v5e:4x4, and prints its memory and a lower bound on
its time, with the kernels, arrays and collectives that cost most. The batches are those of the run in --workdir, or of
data with the lengths that --lengths states; by default they are WMT14 English-German's. It needs XLA's compilers for
accelerators: see docs/devices.md.
"""

import argparse
import json
from pathlib import Path

from scripts.planning.devices import parse_target
from transformer import cli, files
from transformer.config.loading import load_file
from transformer.errors import UserError


def main(arguments: argparse.Namespace) -> None:
    config, target = load_file(arguments.config, arguments.overrides), parse_target(arguments.device)
    from scripts.planning import lengths, rendering
    from scripts.planning.compilers import find_devices
    from scripts.planning.estimate import estimate
    from scripts.planning.memory import explain

    devices = find_devices(target)
    if arguments.workdir is None:
        data = lengths.assume(config, arguments.lengths)
    else:
        data = lengths.read(config, Path(arguments.workdir))
    estimated = estimate(config, target, devices, data.corpus, data.vocab_sizes)
    if arguments.format == "json":
        print(json.dumps(files.six_digits(rendering.to_json(config, target, estimated, data.description))))
    else:
        for line in rendering.to_lines(config, target, estimated, data.description):
            print(line)
    largest = estimated.largest
    if not largest.memory.fits:
        raise UserError(explain(config, target, str(largest.bucket), largest.memory))


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.plan", __doc__, overrides="config")
    parser.add_argument("--config", required=True, metavar="FILE[:ARG]", help="a file of configs/, or a config.json")
    parser.add_argument("--device", required=True, metavar="NAME[:SIZE]", help="the devices: h100:8, v5e:4x4")
    data = parser.add_mutually_exclusive_group()
    data.add_argument("--workdir", metavar="DIR", help="a run whose data and vocabulary count")
    data.add_argument(
        "--lengths", metavar="PAIRS:SOURCE:TARGET", help="training pairs, mean tokens of both sides (WMT14 en-de)"
    )
    parser.add_argument("--format", choices=("text", "json"), default="text", help="output format (text)")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
