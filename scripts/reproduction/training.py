"""Training of the runs of a table, as trials of a sweep (scripts/sweep.py)."""

import argparse
from collections.abc import Sequence

from scripts.sweeping import description, running
from scripts.sweeping.description import Values
from scripts.sweeping.folder import SweepFolder
from scripts.sweeping.study import storage_errors
from scripts.sweeping.tasks import TrainingTask
from transformer.config.types import Config


def train_trials(
    config: Config,
    folder: SweepFolder,
    trials: Sequence[Values],
    objective: str,
    arguments: argparse.Namespace,
) -> None:
    """Trains the trials in `folder` that are not complete.

    `arguments` has the flags `jobs` and `retry_failed` of scripts.reproduce.
    """
    sweep = description.listed(trials, objective=objective, pruner=None)
    task = TrainingTask(config, folder)
    with storage_errors(folder.storage):
        running.run_sweep(sweep, task, folder.storage, arguments.jobs, arguments.retry_failed)
