"""The work of `scripts.reproduce`."""

import argparse
from pathlib import Path

import optuna

from scripts import markdown
from scripts.commands import sweep
from scripts.reproduction.runs import SCALES, make_trials, read_rows, read_runs
from scripts.reproduction.tables import make_text
from scripts.sweeping import description
from scripts.sweeping.folder import Folder
from scripts.sweeping.study import storage_errors
from scripts.sweeping.tasks import Training
from scripts.sweeping.worker import run_trials
from transformer.errors import UserError


def main(arguments: argparse.Namespace) -> None:
    optuna.logging.disable_default_handler()
    scale = SCALES[arguments.scale]
    for flag in ("seeds", "other_seeds", "jobs"):
        if getattr(arguments, flag) < 1:
            raise UserError(f"--{flag}={getattr(arguments, flag)}: must be at least 1")
    configs = read_rows(scale, arguments.data or scale.data, arguments.rows, arguments.overrides)
    folder = Folder(Path(arguments.output or f"runs/{arguments.table}-{arguments.scale}"))
    trials = make_trials(configs, arguments.seeds, arguments.other_seeds)
    if not arguments.report:
        described = description.listed(trials, objective="bleu", pruner=None)
        task = Training(configs["base"], folder)
        sweep.check_values(described, task)
        with storage_errors(folder.storage):
            study = sweep.open_study(folder, described, task, folder.storage)
            if arguments.retry_failed:
                study.retry_failed()
            run_trials(study, task, arguments.jobs)
    elif folder.record.exists():
        trials = folder.read()["trials"]
    markdown.publish(make_text(configs, read_runs(folder, configs, trials), len(trials)), "table3", arguments.readme)
