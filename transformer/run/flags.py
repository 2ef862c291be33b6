"""The flags of `transformer.train`."""

import argparse

from transformer import cli
from transformer.config.keys import whole_number
from transformer.config.loading import load_file
from transformer.config_types import Config
from transformer.distributed.launch import add_flags
from transformer.errors import UserError
from transformer.run import continuation
from transformer.run.profiling import profiled_steps

DEVICE_HELP = "with --plan: devices to compile for, which need not be there: h100:8, v5e:4x4"
LENGTHS_HELP = "training pairs and mean tokens of both sides that the plan for a device assumes (WMT14 en-de)"


def make_parser(description: str) -> cli.Parser:
    parser = cli.Parser("transformer.train", description, overrides="config")
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
    add_flags(parser)
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


def read_config(arguments: argparse.Namespace) -> Config:
    if arguments.extend is not None:
        return continuation.extended_config(arguments)
    if arguments.config is None:
        raise UserError("--config: is required, except with --extend (--help lists the flags)")
    return load_file(arguments.config, arguments.overrides)


def number_of_steps(text: str) -> int:
    try:
        return whole_number(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} must be an integer, the step to continue to") from None
