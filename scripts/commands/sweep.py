"""The work of `scripts.sweep`."""

import argparse
from pathlib import Path

import optuna
from absl import logging
from optuna.trial import TrialState

from scripts import markdown
from scripts.sweeping import description, results
from scripts.sweeping.description import Sweep, Values, extremes
from scripts.sweeping.folder import Folder, recorded_sweep
from scripts.sweeping.study import SweepStudy, hide_password, storage_errors
from scripts.sweeping.tasks import Decoding, Task, Training
from scripts.sweeping.worker import run_trials
from transformer import files
from transformer.checkpoints import restore
from transformer.config import loading
from transformer.config.keys import nearest, show
from transformer.errors import UserError
from transformer.workdir import open_existing


def main(arguments: argparse.Namespace) -> None:
    optuna.logging.disable_default_handler()
    folder = Folder(Path(arguments.workdir))
    url = arguments.storage or folder.storage
    hide_password(url)  # raises an error if it is not a URL
    with storage_errors(url):
        if arguments.report:
            record = folder.read()
            study = SweepStudy(url, record["study"], recorded_sweep(record), folder.lock)
        else:
            sweep, task = check(arguments, folder)
            study = open_study(folder, sweep, task, url)
            if arguments.retry_failed:
                study.retry_failed()
            run_trials(study, task, arguments.jobs)
        report(study, folder, arguments.readme)


def check(arguments: argparse.Namespace, folder: Folder) -> tuple[Sweep, Task]:
    """Returns the sweep and its task. Raises UserError for invalid flags, an invalid sweep file and invalid values."""
    if arguments.sweep is None:
        raise UserError("--sweep=FILE is needed: the keys to vary; configs/sweeps has examples")
    if (arguments.config is None) == (arguments.source is None):
        raise UserError("give either --config=FILE, to train every trial, or --from=WORKDIR, to decode a run")
    if arguments.source is not None and arguments.overrides:
        raise UserError(f"--config.{arguments.overrides[0][0]}: --from uses the configuration of its run unchanged")
    if arguments.jobs < 1:
        raise UserError(f"--jobs={arguments.jobs}: must be at least 1")
    sweep, task = load_sweep(arguments.sweep), make_task(arguments, folder)
    check_values(sweep, task)
    return sweep, task


def load_sweep(name: str) -> Sweep:
    """Returns the sweep of a sweep file. Raises UserError if the file is missing or invalid."""
    path = loading.present_or_installed(name)
    if not path.is_file():
        there = [str(file) for file in path.parent.glob("*.py")]
        raise UserError(f"--sweep={path}: no such file{nearest(name, there)}")
    sweep = loading.call_function(path, "get_sweep", description)
    if not isinstance(sweep, Sweep):
        name = type(sweep).__name__
        raise UserError(f"--sweep={path}: get_sweep() returned {name}, must return sweep.listed() or sweep.search()")
    return sweep


def make_task(arguments: argparse.Namespace, folder: Folder) -> Task:
    if arguments.config is not None:
        return Training(loading.load_file(arguments.config, arguments.overrides), folder)
    source = Path(arguments.source)
    _, config = open_existing(source)
    # A resumed sweep keeps its checkpoint, although the run may have a better one by now.
    step = folder.read()["task"].get("step") if folder.record.exists() else None
    return Decoding(config, source, restore.choose_step(source, "best") if step is None else step, folder)


def check_values(sweep: Sweep, task: Task) -> None:
    """Raises UserError unless every listed trial, and every bound and choice of the space, is valid."""
    if sweep.objective not in task.objectives:
        raise UserError(f"objective={sweep.objective}: must be one of {', '.join(task.objectives)} here")
    checks: list[tuple[str, Values]] = [(f"trial {number}", values) for number, values in enumerate(sweep.trials)]
    for key, distribution in sweep.space.items():
        checks += [(f"{key}={show(value)}", {key: value}) for value in extremes(distribution)]
    for name, values in checks:
        try:
            task.check(values, sweep.objective)
        except UserError as error:
            raise UserError(f"{name}: {error}") from None


def open_study(folder: Folder, sweep: Sweep, task: Task, url: str) -> SweepStudy:
    """Returns the study of the sweep. Creates it unless the folder has one."""
    files.make_folder(folder.path, "--workdir")
    folder.check_own()
    with folder.lock():
        record = folder.describe(sweep, task.identity)
        study = SweepStudy(url, record["study"], sweep, folder.lock)
        if folder.record.exists():
            study.load()  # raises an error if the storage does not have it
        study.create()
        files.write_json(folder.record, record)
    if failed := [str(number) for number, trial in enumerate(study.trials()) if trial.state == TrialState.FAIL]:
        logging.warning("Failed earlier: trials %s. --retry_failed runs them again.", ", ".join(failed))
    return study


def report(study: SweepStudy, folder: Folder, readme: str | None) -> None:
    """Writes `trials.csv` and publishes the table. Raises UserError if no trial is complete."""
    trials, sweep = study.trials(), study.sweep
    source = folder.read()["task"].get("from")
    workdirs = [folder.workdir(number) if source is None else Path(source) for number in range(len(trials))]
    files.write_text(folder.table, results.make_csv(trials, sweep, workdirs))
    logging.info("%s", results.summary(trials, sweep))
    if not (complete := [number for number, trial in enumerate(trials) if trial.state == TrialState.COMPLETE]):
        raise UserError(f"{folder.path}: no trial is complete; {folder.logs} has the output of each")
    table = markdown.table(results.make_table(trials, sweep))
    if decoding := results.describe_decoding(folder, sweep, complete[0]):
        table += f"\n{decoding}\n"
    if importances := results.importances(study):
        listed = ", ".join(f"{key} {100 * importance:.3g}%" for key, importance in importances.items())
        table += f"\nImportance for {sweep.objective} (fANOVA main effects): {listed}.\n"
    else:
        table += (
            f"\nNo importance for {sweep.objective}: it needs a complete grid in which the objective differs, "
            f"or {results.FOREST_TRIALS} complete trials.\n"
        )
    markdown.publish(table, "sweep", readme)
