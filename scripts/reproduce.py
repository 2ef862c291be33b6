"""Trains rows of the paper's Table 3, and tests what the paper concludes from it.

    python -m scripts.reproduce table3 --scale=mini --data=FOLDER [--output=DIR] [--readme=docs/results.md]
    python -m scripts.reproduce table3 --scale=paper --data=data/tfds --output=DIR [--jobs=N]
    python -m scripts.reproduce table3 --scale=mini --output=DIR --report

--scale=mini has a quarter of all widths, some of the rows and Multi30k (configs/table3_mini.py); --scale=paper has the
paper's models and data. The same command resumes: runs are trials of a sweep (scripts/sweep.py). All rows are trained
with seed 0 first, so an unfinished table soon has every row. More --seeds can be added later.
"""

import argparse
from pathlib import Path

from transformer.config import cli


def main(arguments: argparse.Namespace) -> None:
    from scripts import markdown
    from scripts.reproduction.rows import make_trials, read_results, read_rows, recorded_rows
    from scripts.reproduction.tables import make_text
    from scripts.sweeping import description, running
    from scripts.sweeping.folder import Folder
    from scripts.sweeping.study import storage_errors
    from scripts.sweeping.tasks import Training

    markdown.check_marks("table3", arguments.readme)
    configs = read_rows(arguments.scale, arguments.data, arguments.rows, arguments.overrides)
    folder = Folder(Path(arguments.output or f"runs/{arguments.table}-{arguments.scale}"))
    trials = make_trials(configs, arguments.seeds)
    if not arguments.report:
        sweep = description.listed(trials, objective="bleu", pruner=None)
        task = Training(configs["base"], folder)
        with storage_errors(folder.storage):
            running.run_sweep(sweep, task, folder.storage, arguments.jobs, arguments.retry_failed)
    else:
        record = folder.read()
        configs = recorded_rows(configs, record["task"])
        trials = record["trials"]
    text = make_text(configs, read_results(folder, configs, trials), len(trials))
    markdown.publish(text, "table3", arguments.readme)


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.reproduce", __doc__, overrides="config")
    parser.add_argument("table", choices=("table3",), help="the table of the paper")
    parser.add_argument("--scale", choices=("mini", "paper"), required=True, help="mini: a quarter of all widths")
    parser.add_argument("--data", metavar="FOLDER", help="folder of the data, or multi30k (mini), wmt14 (paper)")
    parser.add_argument("--output", metavar="DIR", help="folder of the runs (runs/table3-SCALE)")
    parser.add_argument("--rows", metavar="ROW,...", help="train only these rows and base (those of the scale)")
    parser.add_argument("--seeds", metavar="N", type=cli.at_least(1), default=2, help="seeds of each row (2)")
    parser.add_argument("--jobs", metavar="N", type=cli.at_least(1), default=1, help="runs at a time (1)")
    parser.add_argument("--retry_failed", action="store_true", help="run again the runs that failed earlier")
    parser.add_argument("--report", action="store_true", help="run nothing; print the tables of the complete runs")
    parser.add_argument("--readme", metavar="FILE", help="Markdown file to write the tables into, between its marks")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
