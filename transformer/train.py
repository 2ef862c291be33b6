"""Trains a model: prepares data and tokenizer, trains, validates, and saves checkpoints.

The same command resumes a run.

python -m transformer.train --config=configs/X.py[:ARG] --workdir=DIR
    [--config.GROUP.KEY=VALUE ...] [--plan] [--profile=FROM:TO]
python -m transformer.train --workdir=DIR --extend=STEPS
"""

import argparse
import functools
import re
import shlex
from pathlib import Path
from typing import NoReturn

from absl import logging

from transformer.config import cli
from transformer.config.loading import load_file
from transformer.config.types import Config
from transformer.support import logs
from transformer.support.errors import UserError
from transformer.workdir import Workdir, open_existing


def main(arguments: argparse.Namespace) -> None:
    # These imports take seconds, which --help should not.
    from transformer.distributed.launch import distributed_run
    from transformer.run.preparation import open_workdir

    with distributed_run(arguments):
        config = read_config(arguments)
        path = Path(arguments.workdir)
        with open_workdir(path, config, arguments.extend, arguments.plan) as (workdir, config):
            run(arguments, workdir, config)


def run(arguments: argparse.Namespace, workdir: Workdir, config: Config) -> None:
    """Trains in a locked workdir, or prints the plan."""
    from transformer.distributed import coordination
    from transformer.run import checks, loop
    from transformer.run.dry_run import describe
    from transformer.run.preparation import prepare

    steps = config.training.steps
    if arguments.profile and arguments.profile[0] > steps:
        raise UserError(
            f"--profile: the run ends at config.training.steps={steps}; name earlier steps"
        )
    # A plan prepares the run in a temporary folder, and trains nothing.
    if arguments.plan:
        for line in describe(prepare(config, workdir)):
            coordination.on_process_zero(functools.partial(print, line, flush=True))
        return
    # From here on, log lines also go to the workdir.
    coordination.on_process_zero(logs.to_file, workdir.log)
    prepared = prepare(config, workdir)
    coordination.on_process_zero(checks.record_start, workdir, config)
    if coordination.broadcast(workdir.is_complete(), config.data.wait_seconds):
        logging.info(
            "This run is complete. To continue it until step STEPS: "
            "python -m transformer.train --workdir=%s --extend=STEPS",
            shlex.quote(arguments.workdir),
        )
    else:
        loop.train(prepared, arguments.profile)


def read_config(arguments: argparse.Namespace) -> Config:
    """Returns the configuration of --config, or of the run that --extend continues.

    Raises UserError if it cannot be used.
    """
    # Without --extend the run is described by its configuration.
    if arguments.extend is None:
        if arguments.config is None:
            raise UserError("--config: is required, except with --extend (--help lists the flags)")
        return load_file(arguments.config, arguments.overrides)
    if "training.steps" in dict(arguments.overrides):
        raise UserError(
            f"--extend={arguments.extend}: becomes config.training.steps; "
            "remove --config.training.steps"
        )
    # `load_file` reduces warm-up and intervals to a shorter length, which `check_continuation` then
    # refuses.
    workdir, recorded_config = open_existing(Path(arguments.workdir))
    steps = max(arguments.extend, recorded_config.training.steps)
    overrides = [*arguments.overrides, ("training.steps", str(steps))]
    return load_file(arguments.config or str(workdir.config), overrides)


def make_parser() -> cli.Parser:
    parser = cli.Parser("transformer.train", __doc__, overrides="config")
    parser.add_argument(
        "--config", metavar="FILE[:ARG]", help="a file of configs/, or the config.json of a run"
    )
    parser.add_argument(
        "--workdir", metavar="DIR", required=True, help="the folder of the run; created if missing"
    )
    parser.add_argument(
        "--extend",
        metavar="STEPS",
        type=int,
        help="continue a complete or interrupted run until step STEPS",
    )
    parser.add_argument(
        "--profile",
        metavar="FROM:TO",
        type=profiled_steps,
        help="trace these steps into the workdir's folder profile, for TensorBoard or Perfetto",
    )
    parser.add_argument(
        "--plan", action="store_true", help="print what the run would do and cost, and stop"
    )
    parser.add_argument(
        "--coordinator", metavar="HOST:PORT", help="address of process 0, for a run of several"
    )
    parser.add_argument(
        "--num_processes", metavar="N", type=int, help="number of processes, with --coordinator"
    )
    parser.add_argument(
        "--process_id", metavar="I", type=int, help="number of this process, from 0"
    )
    parser.add_argument(
        "--distributed", action="store_true", help="ask the cluster instead (Slurm, GKE, TPU pod)"
    )
    return parser


def profiled_steps(text: str) -> tuple[int, int]:
    """Returns the first and the last step of FROM:TO.

    Raises ArgumentTypeError if they are not such steps.
    """
    # int() would also accept signs, spaces and other digits.
    steps = re.fullmatch(r"([0-9]+):([0-9]+)", text)
    if steps is None or not 1 <= int(steps[1]) <= int(steps[2]):
        raise argparse.ArgumentTypeError(
            f"{text} must be FROM:TO, the first and the last step, such as 100:105"
        )
    return int(steps[1]), int(steps[2])


def command() -> NoReturn:
    cli.run(make_parser(), main)


if __name__ == "__main__":
    command()
