"""Varies keys of a configuration: trains or decodes once for every trial and compares the results.

    python -m scripts.sweep --config=configs/X.py[:ARG] [--config.KEY=VALUE ...]
        --sweep=configs/sweeps/Y.py --workdir=DIR
        [--jobs=N] [--together [--plan]] [--storage=URL] [--retry_failed]
    python -m scripts.sweep --from=WORKDIR --sweep=configs/sweeps/Y.py --workdir=DIR
        [--scorer=NAME:COMMAND]
    python -m scripts.sweep --workdir=DIR --report [--readme=FILE]

With --config every trial is a training run. With --from every trial decodes an existing run. The
same command resumes a sweep. Several machines with one storage and one workdir share the trials.
"""

import argparse
import functools
from pathlib import Path

from scripts import markdown, score_flags
from transformer.config import cli
from transformer.support.errors import UserError


def main(arguments: argparse.Namespace) -> None:
    from scripts.sweeping import description, results, running, tasks
    from scripts.sweeping.folder import SweepFolder, recorded_sweep
    from scripts.sweeping.study import SweepStudy, storage_errors

    # Fail before hours of training if the table cannot be published.
    markdown.check_marks("sweep", arguments.readme)
    folder = SweepFolder(Path(arguments.workdir))
    url = arguments.storage or folder.storage
    with storage_errors(url):
        if arguments.report:
            # The record has the sweep, so that a report does not need its file.
            record = folder.read()
            study = SweepStudy(url, record["study"], recorded_sweep(record), folder.lock)
        else:
            check_flags(arguments)
            sweep = description.load_sweep(arguments.sweep)
            task = tasks.make_task(arguments, folder)
            jobs = arguments.jobs or 1
            start = None
            if arguments.together:
                from scripts.sweeping import together

                # By default all trials train at the same time.
                num_trials = len(sweep.trials)
                jobs = min(arguments.jobs or num_trials, num_trials)
                together.check(task.config, sweep, jobs)
                if arguments.plan:
                    print(together.estimate_memory(task.config, sweep, folder.path))
                    return
                start = functools.partial(
                    together.TrialThread, together.TrialStack(jobs, sweep.keys)
                )
            study = running.run_sweep(sweep, task, url, jobs, arguments.retry_failed, start)
        results.publish(study, folder, arguments.readme)


def check_flags(arguments: argparse.Namespace) -> None:
    if arguments.sweep is None:
        raise UserError("--sweep=FILE is needed: the keys to vary; configs/sweeps has examples")
    if (arguments.config is None) == (arguments.source is None):
        raise UserError(
            "give either --config=FILE, to train every trial, or --from=WORKDIR, to decode a run"
        )
    if arguments.source is None and arguments.scorer:
        raise UserError("--scorer: is for --from, because trials of --config do not evaluate")
    if arguments.source is not None and arguments.together:
        raise UserError("--together: trains the trials of --config; --from only decodes")
    if arguments.plan and not arguments.together:
        raise UserError(
            "--plan: shows how many trials fit --together; transformer.train --plan describes one"
        )
    if arguments.source is not None and arguments.overrides:
        raise UserError(
            f"--config.{arguments.overrides[0][0]}: --from uses the configuration of its run "
            "unchanged"
        )


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.sweep", __doc__, overrides="config")
    parser.add_argument("--workdir", required=True, help="folder of the sweep and of its trials")
    parser.add_argument("--sweep", help="the keys to vary; configs/sweeps has examples")
    parser.add_argument("--config", metavar="FILE.py[:ARG]", help="the configuration of the trials")
    parser.add_argument(
        "--from",
        dest="source",
        metavar="WORKDIR",
        help="decode this run's validation split instead",
    )
    score_flags.add_flags(parser)
    parser.add_number("--jobs", None, "trials at a time (1; with --together all)")
    parser.add_argument(
        "--together", action="store_true", help="train trials that differ in numbers as one program"
    )
    parser.add_argument(
        "--plan",
        action="store_true",
        help="print how many trials fit in memory --together, and stop",
    )
    parser.add_argument("--storage", help="PostgreSQL, for several machines (SQLite in DIR)")
    parser.add_argument(
        "--retry_failed", action="store_true", help="run again the trials that failed earlier"
    )
    parser.add_argument("--report", action="store_true", help="run nothing; print the table")
    markdown.add_flag(parser)
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
