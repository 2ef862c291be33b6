"""Varies keys of a configuration: trains every trial, or decodes an existing run anew, and says what was better.

    python -m scripts.sweep --config=configs/X.py[:ARG] [--config.KEY=VALUE ...] --sweep=configs/sweeps/Y.py
        --workdir=DIR [--jobs=N] [--storage=URL] [--retry_failed]
    python -m scripts.sweep --from=WORKDIR --sweep=configs/sweeps/Y.py --workdir=DIR
    python -m scripts.sweep --workdir=DIR --report [--readme=FILE]

Run again, it goes on where it was killed. On several machines, with one storage and one folder, they share the trials.
"""

import argparse
from pathlib import Path

import optuna
from absl import logging

from scripts import markdown
from scripts.sweeping import description, results
from scripts.sweeping.description import Sweep, Values, corners
from scripts.sweeping.display import display
from scripts.sweeping.folder import Folder, recorded_sweep
from scripts.sweeping.ledger import Ledger
from scripts.sweeping.storage import reach, shown, storage_errors
from scripts.sweeping.supervisor import Supervisor
from scripts.sweeping.tasks import Decoding, Task, Training
from transformer import cli, files
from transformer.checkpoints import restore as saved
from transformer.config import loading as configuration
from transformer.config import python_file
from transformer.config.keys import nearest, show
from transformer.errors import UserError
from transformer.workdir import make_folder, open_existing


def main(arguments: argparse.Namespace) -> None:
    optuna.logging.disable_default_handler()
    folder = Folder(Path(arguments.workdir))
    url = folder.storage if arguments.storage is None else arguments.storage
    shown(url)  # raises if it is none
    with storage_errors(url):
        if arguments.report:
            record = folder.read()
            folder.check_storage(record, url)
            with Ledger(url, record["study"], recorded_sweep(record), make=False) as ledger:
                report(ledger, folder, arguments.readme)
            return
        sweep, task = check(arguments, folder)
        with enter(folder, sweep, task, url) as ledger:
            begin(ledger, arguments.retry_failed)
            with display(ledger, task, arguments.jobs) as show_progress:
                Supervisor(ledger, task, arguments.jobs, folder.logs).run(show_progress)
            report(ledger, folder, arguments.readme)


def check(arguments: argparse.Namespace, folder: Folder) -> tuple[Sweep, Task]:
    """What is to be done. Raises UserError for all that can be found wrong with it before anything is made."""
    check_flags(arguments)
    sweep, task = load_sweep(Path(arguments.sweep)), make_task(arguments, folder)
    check_trials(sweep, task)
    return sweep, task


def enter(folder: Folder, sweep: Sweep, task: Task, url: str) -> Ledger:
    """Makes the sweep's folder and ledger, or takes up those that are there."""
    folder.record_of(sweep, task.identity, url)  # before anything is made where something else may be
    if url != folder.storage:
        reach(url)
    make_folder(folder.path)
    with folder.turn(task.config.data.wait_seconds):
        record = folder.record_of(sweep, task.identity, url)
        ledger = Ledger(url, record["study"], sweep)
        folder.write(record)
        ledger.mend()  # in turn: otherwise all that start together add rows for the same trials
    return ledger


def begin(ledger: Ledger, retry_failed: bool) -> None:
    """Says what has failed before, and has it tried again if that is wanted."""
    if retry_failed:
        ledger.retry_failed()
    elif failed := [str(trial) for trial, standing in enumerate(ledger.standings()) if standing.state == "failed"]:
        logging.warning("Failed earlier: trials %s. --retry_failed tries them again.", ", ".join(failed))


def check_flags(arguments: argparse.Namespace) -> None:
    if arguments.sweep is None:
        raise UserError("--sweep=FILE is needed: what to vary; configs/sweeps has some")
    if (arguments.config is None) == (arguments.source is None):
        raise UserError("give --config=FILE to train every trial, or --from=WORKDIR to decode a run; one of the two")
    if arguments.source is not None and arguments.overrides:
        raise UserError(f"--config.{arguments.overrides[0][0]}: --from takes the configuration of its run as it is")
    if arguments.jobs < 1:
        raise UserError(f"--jobs={arguments.jobs}: must be at least 1")


def load_sweep(path: Path) -> Sweep:
    """What the sweep file says. Raises UserError if it cannot be used."""
    if not path.is_file():
        there = [str(file) for file in path.parent.glob("*.py")]
        raise UserError(f"--sweep={path}: no such file{nearest(str(path), there)}")
    sweep = python_file.call(path, "get_sweep", description)
    if not isinstance(sweep, Sweep):
        raise UserError(
            f"--sweep={path}: get_sweep() returned {type(sweep).__name__}, must return listed() or search()"
        )
    return sweep


def make_task(arguments: argparse.Namespace, folder: Folder) -> Task:
    if arguments.config is not None:
        return Training(configuration.load_file(arguments.config, arguments.overrides), folder)
    source = Path(arguments.source)
    _, config = open_existing(source)
    # The checkpoint that it began with, although the run may have gone on.
    step = folder.read()["task"].get("step") if folder.record.exists() else None
    return Decoding(config, source, saved.choose(source, "best") if step is None else step, folder)


def check_trials(sweep: Sweep, task: Task) -> None:
    """Raises UserError unless every listed trial, and every bound and choice of the space, can be run."""
    if sweep.objective not in task.objectives:
        raise UserError(f"objective={sweep.objective}: must be one of {', '.join(task.objectives)} here")
    for trial, values in enumerate(sweep.trials):
        checked(f"trial {trial}", task, values, sweep)
    for key, distribution in sweep.space.items():
        for value in corners(distribution):
            # Beside the first of the trials: all have the same keys.
            checked(f"{key}={show(value)}", task, sweep.trials[0] | {key: value}, sweep)


def checked(name: str, task: Task, values: Values, sweep: Sweep) -> None:
    try:
        task.check(values, sweep.objective)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None


def report(ledger: Ledger, folder: Folder, readme: str | None) -> None:
    """Writes `trials.csv`, prints the table. Raises UserError if no trial is complete."""
    standings, sweep = ledger.standings(), ledger.sweep
    if any(standing.rows for standing in standings):
        files.write_text(folder.table, results.make_csv(standings, sweep, folder.workdirs(len(standings))))
    if results.best(standings, sweep) is None:
        failed = [standing.error.splitlines()[-1] for standing in standings if standing.state == "failed"]
        why = f"{len(failed)} failed, the first with: {failed[0]}" if failed else "none has been run to its end"
        raise UserError(f"{folder.path}: no trial is complete; {why}")
    table = markdown.table(results.make_table(standings, sweep))
    shares = results.importances(ledger)
    if shares:
        listed = ", ".join(f"{key} {share:.0%}" for key, share in shares.items())
        table += f"\nShares in the variance of {sweep.objective}: {listed}.\n"
    logging.info("%s", results.summary(standings, sweep, 1))
    if readme is None:
        print(table, end="")
    else:
        markdown.replace(Path(readme), "sweep", table)


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.sweep", __doc__, overrides="config")
    parser.add_argument("--workdir", metavar="DIR", required=True, help="of the sweep; trials have theirs in it")
    parser.add_argument("--sweep", metavar="FILE.py", help="what to vary; configs/sweeps has some")
    parser.add_argument("--config", metavar="FILE.py[:ARG]", help="what every trial trains, but for what is varied")
    parser.add_argument("--from", dest="source", metavar="WORKDIR", help="decode this run's validation split instead")
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="trials at a time, of this process (1)")
    parser.add_argument("--storage", metavar="URL", help="PostgreSQL, to share the sweep (SQLite in DIR)")
    parser.add_argument("--retry_failed", action="store_true", help="try again what failed in an earlier start")
    parser.add_argument("--report", action="store_true", help="run nothing: print what there is")
    parser.add_argument("--readme", metavar="FILE", help="put the table between this file's marks")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
