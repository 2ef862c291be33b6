"""The paper's Table 3: its rows as trials of a sweep (scripts/sweep.py)."""

import argparse
from pathlib import Path

from scripts import markdown
from scripts.reproduction.rows import make_trials, read_results, read_rows, read_table
from scripts.reproduction.tables import make_text
from scripts.reproduction.training import train_trials
from scripts.sweeping.folder import SweepFolder

SEEDS = 2


def main(arguments: argparse.Namespace) -> None:
    configs = read_rows(arguments.scale, arguments.rows, arguments.overrides)
    path = Path(arguments.output or f"runs/table3-{arguments.scale}")
    if arguments.report:
        configs, results, planned = read_table(path, configs)
    else:
        folder = SweepFolder(path)
        trials = make_trials(configs, SEEDS if arguments.seeds is None else arguments.seeds)
        train_trials(configs["base"], folder, trials, "bleu", arguments)
        results = read_results(folder, configs, trials)
        planned = len(trials)
    markdown.publish(make_text(configs, results, planned), "table3", arguments.readme)
