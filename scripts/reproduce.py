"""Trains rows of the paper's Table 3, and tests what the paper concludes from it; or Table 4.

    python -m scripts.reproduce table3 --scale=mini
        [--output=DIR] [--readme=docs/results.md]
    python -m scripts.reproduce table3 --scale=paper --output=DIR
        [--jobs=N] --config.data.path=data/tfds
    python -m scripts.reproduce table3 --scale=mini --output=DIR --report
    python -m scripts.reproduce table4 --scale=mini|paper --trees=PATH --validation=PATH
        [--test=PATH] [--text=FILE] [--output=DIR]

--scale=mini has a quarter of all widths, some of the rows and Multi30k (configs/table3_mini.py).
--scale=paper has the paper's models and data. The same command resumes: runs are trials of a sweep
(scripts/sweep.py). All rows are trained with seed 0 first, so an unfinished table soon has every
row. More --seeds can be added later.

Table 4 is constituency parsing (configs/parsing.py, docs/parsing.md). The treebanks are those of
scripts.get_data. With --text, the first run parses a file of tokenized sentences, and more runs
train on these silver trees too.
"""

import argparse
from pathlib import Path

from scripts import markdown
from transformer.config import cli
from transformer.support.errors import UserError

SEEDS = {"table3": 2, "table4": 3}
# The flags that only one table has.
FLAGS = {
    "rows": "table3",
    **dict.fromkeys(
        ("trees", "validation", "test", "text", "gold_weight", "average"),
        "table4",
    ),
}


def main(arguments: argparse.Namespace) -> None:
    from scripts.reproduction.rows import make_trials, read_results, read_rows, recorded_rows
    from scripts.reproduction.tables import make_text
    from scripts.sweeping import description, running
    from scripts.sweeping.folder import SweepFolder
    from scripts.sweeping.study import storage_errors
    from scripts.sweeping.tasks import TrainingTask

    # Missing marks in --readme are reported before hours of training.
    markdown.check_marks(arguments.table, arguments.readme)
    arguments.output = arguments.output or f"runs/{arguments.table}-{arguments.scale}"
    arguments.seeds = arguments.seeds or SEEDS[arguments.table]
    for flag, table in FLAGS.items():
        value = getattr(arguments, flag)
        if value is not None and table != arguments.table:
            raise UserError(f"--{flag}={value}: is for {table}; leave it out")
    if arguments.table == "table4":
        from scripts.reproduction import table4

        table4.reproduce(arguments)
        return

    configs = read_rows(arguments.scale, arguments.rows, arguments.overrides)
    folder = SweepFolder(Path(arguments.output))
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
    parser.add_argument("table", choices=tuple(SEEDS), help="the table of the paper")
    parser.add_argument(
        "--scale", choices=("mini", "paper"), required=True, help="mini: a quarter of all widths"
    )
    parser.add_argument("--output", help="folder of the runs (runs/TABLE-SCALE)")
    parser.add_argument(
        "--rows", metavar="ROW,...", help="train only these rows and base (the rows of the scale)"
    )
    parser.add_number("--seeds", None, "seeds of each row (table3: 2, table4: 3)")
    for split, purpose in (("trees", "train"), ("validation", "validate"), ("test", "test")):
        parser.add_argument(
            f"--{split}", metavar="PATH,PATH", help=f"table4: treebanks to {purpose} on"
        )
    parser.add_argument("--text", help="table4: file of tokenized sentences for silver trees")
    parser.add_number("--gold_weight", None, "table4: readings of a gold tree in an epoch (1)")
    parser.add_number("--average", None, "table4: checkpoints to average (1)")
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
