"""Trains rows of the paper's Table 3, and tests what the paper concludes from it.

    python -m scripts.reproduce table3 --scale=mini
        [--output=DIR] [--readme=docs/results.md]
    python -m scripts.reproduce table3 --scale=paper --output=DIR
        [--jobs=N] --config.data.path=data/tfds
    python -m scripts.reproduce table3 --scale=mini --output=DIR --report

--scale=mini has a quarter of all widths, some of the rows and Multi30k (configs/table3_mini.py).
--scale=paper has the paper's models and data. The same command resumes: runs are trials of a sweep
(scripts/sweep.py). All rows are trained with seed 0 first, so an unfinished table soon has every
row. More --seeds can be added later.
"""

import argparse
from pathlib import Path

from scripts import markdown
from transformer.config import cli


def main(arguments: argparse.Namespace) -> None:
    from scripts.reproduction.rows import make_trials, read_results, read_rows, recorded_rows
    from scripts.reproduction.tables import make_text
    from scripts.sweeping import description, running
    from scripts.sweeping.folder import SweepFolder
    from scripts.sweeping.study import storage_errors
    from scripts.sweeping.tasks import TrainingTask

    # Missing marks in --readme are reported before hours of training.
    markdown.check_marks("table3", arguments.readme)
    configs = read_rows(arguments.scale, arguments.rows, arguments.overrides)
    folder = SweepFolder(Path(arguments.output or f"runs/{arguments.table}-{arguments.scale}"))
    trials = make_trials(configs, arguments.seeds)
    if not arguments.report:
        sweep = description.listed(trials, objective="bleu", pruner=None)
        task = TrainingTask(configs["base"], folder)
        with storage_errors(folder.storage):
            running.run_sweep(sweep, task, folder.storage, arguments.jobs, arguments.retry_failed)
    else:
        # The rows as the sweep trained them, even if the config files have changed since.
        record = folder.read()
        configs = recorded_rows(configs, record["task"])
        trials = record["trials"]
    results = read_results(folder, configs, trials)
    text = make_text(configs, results, len(trials))
    markdown.publish(text, "table3", arguments.readme)


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.reproduce", __doc__, overrides="config")
    parser.add_argument("table", choices=("table3",), help="the table of the paper")
    parser.add_argument(
        "--scale", choices=("mini", "paper"), required=True, help="mini: a quarter of all widths"
    )
    parser.add_argument("--output", help="folder of the runs (runs/table3-SCALE)")
    parser.add_argument(
        "--rows", metavar="ROW,...", help="train only these rows and base (the rows of the scale)"
    )
    parser.add_number("--seeds", 2, "seeds of each row")
    parser.add_number("--jobs", 1, "runs at a time")
    parser.add_argument(
        "--retry_failed", action="store_true", help="run again the runs that failed earlier"
    )
    parser.add_argument(
        "--report", action="store_true", help="run nothing; print the tables of the complete runs"
    )
    markdown.add_flag(parser)
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
