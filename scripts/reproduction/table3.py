"""The paper's Table 3: its rows as trials of a sweep (scripts/sweep.py)."""

import argparse
from pathlib import Path

from scripts import markdown
from scripts.reproduction.rows import make_trials, read_results, read_rows, read_table
from scripts.reproduction.tables import make_text
from scripts.sweeping import description, running
from scripts.sweeping.folder import SweepFolder
from scripts.sweeping.study import storage_errors
from scripts.sweeping.tasks import TrainingTask
from transformer.support.errors import UserError

SEEDS = 2


def main(arguments: argparse.Namespace) -> None:
    if arguments.scale is None:
        raise UserError("--scale: is required, mini or paper (--help lists the flags)")
    # Missing marks in --readme are reported before hours of training.
    markdown.check_marks("table3", arguments.readme)
    configs = read_rows(arguments.scale, arguments.rows, arguments.overrides)
    path = Path(arguments.output or f"runs/table3-{arguments.scale}")
    if arguments.report:
        configs, results, planned = read_table(path, configs)
    else:
        folder = SweepFolder(path)
        trials = make_trials(configs, SEEDS if arguments.seeds is None else arguments.seeds)
        sweep = description.listed(trials, objective="bleu", pruner=None)
        task = TrainingTask(configs["base"], folder)
        with storage_errors(folder.storage):
            running.run_sweep(sweep, task, folder.storage, arguments.jobs, arguments.retry_failed)
        results = read_results(folder, configs, trials)
        planned = len(trials)
    markdown.publish(make_text(configs, results, planned), "table3", arguments.readme)
