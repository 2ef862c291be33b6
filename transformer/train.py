"""Trains a model: prepares data and tokenizer, trains, validates, saves checkpoints. Run again, it resumes.

python -m transformer.train --config=configs/X.py[:ARG] --workdir=DIR [--config.GROUP.KEY=VALUE ...] [--plan]
    [--profile=FROM:TO]
python -m transformer.train --config=configs/X.py --plan --device=h100:8 [--format=json]
python -m transformer.train --workdir=DIR --extend=STEPS
"""

import argparse
from typing import NoReturn

from transformer import cli
from transformer.config.keys import whole_number
from transformer.errors import UserError

DEVICE_HELP = "with --plan: devices to compile for, which need not be there: h100:8, v5e:4x4"
LENGTHS_HELP = "training pairs and mean tokens of both sides that the plan for a device assumes (WMT14 en-de)"


def main(arguments: argparse.Namespace) -> None:
    check(arguments)
    from transformer.commands import train

    train.main(arguments)


def make_parser() -> cli.Parser:
    parser = cli.Parser("transformer.train", __doc__, overrides="config")
    parser.add_argument("--config", metavar="FILE[:ARG]", help="a file of configs/, or the config.json of a run")
    parser.add_argument("--workdir", metavar="DIR", help="the folder of the run; created if missing")
    parser.add_argument(
        "--extend",
        metavar="STEPS",
        type=number_of_steps,
        help="continue the run, also a complete one, until step STEPS",
    )
    parser.add_argument(
        "--profile",
        metavar="FROM:TO",
        type=profiled_steps,
        help="trace these steps into the workdir's folder profile, for TensorBoard or Perfetto",
    )
    parser.add_argument("--plan", action="store_true", help="print what the run would do and cost, and stop")
    parser.add_argument("--device", metavar="NAME[:SIZE]", help=DEVICE_HELP)
    parser.add_argument("--lengths", metavar="PAIRS:SOURCE:TARGET", help=LENGTHS_HELP)
    parser.add_argument("--format", choices=("text", "json"), help="of the plan for a device (text)")
    parser.add_process_flags()
    return parser


def check(arguments: argparse.Namespace) -> None:
    """Raises UserError if a flag is missing or has no meaning with or without another."""
    if arguments.profile is not None and arguments.plan:
        raise UserError("--profile --plan: a plan trains no step to trace; give one of them")
    if arguments.device is not None and not arguments.plan:
        raise UserError(
            f"--device={arguments.device}: is for plans: give --plan as well, or leave it out to train here"
        )
    if arguments.lengths is not None and arguments.workdir is not None:
        raise UserError(
            f"--lengths={arguments.lengths} --workdir={arguments.workdir}: give lengths, or a run with data"
        )
    if arguments.device is None:
        if arguments.workdir is None:
            raise UserError("--workdir: is required, except with --plan --device (--help lists the flags)")
        for name in ("lengths", "format"):
            if (value := getattr(arguments, name)) is not None:
                raise UserError(f"--{name}={value}: is for plans of other devices: give --plan --device=NAME as well")


def number_of_steps(text: str) -> int:
    try:
        return whole_number(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} must be an integer, the step to continue to") from None


def profiled_steps(text: str) -> tuple[int, int]:
    """Returns the first and the last step of FROM:TO. Raises ArgumentTypeError if they are not such steps."""
    first, _, last = text.partition(":")
    try:
        steps = whole_number(first), whole_number(last)
    except ValueError:
        steps = 0, 0
    if not 1 <= steps[0] <= steps[1]:
        raise argparse.ArgumentTypeError(f"{text} must be FROM:TO, the first and the last step, such as 100:105")
    return steps


def command() -> NoReturn:
    cli.run(make_parser(), main)


if __name__ == "__main__":
    command()
