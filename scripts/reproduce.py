"""Trains rows of the paper's Table 3, or an entry of the race to a BLEU score.

    python -m scripts.reproduce table3 --scale=mini
        [--output=DIR] [--readme=docs/results.md]
    python -m scripts.reproduce table3 --scale=paper --output=DIR
        [--jobs=N] --config.data.path=data/tfds
    python -m scripts.reproduce table3 --scale=mini --output=DIR --report
    python -m scripts.reproduce speedrun --entry=configs/speedrun/NAME.py --output=DIR
        [--seeds=5] [--beside=configs/speedrun/OTHER.py] [--config.data.path=FOLDER]

table3 tests what the paper concludes from the table. --scale=mini has a quarter of all widths, some
of the rows and Multi30k (configs/table3_mini.py). --scale=paper has the paper's models and data.
Runs are trials of a sweep (scripts/sweep.py). All rows are trained with seed 0 first, so an
unfinished table soon has every row. More --seeds can be added later. With --report, --output may
also be a folder of records (scripts/record.py).

speedrun follows the rules in docs/speedrun.md. It trains the seeds one after another, tests their
mean, and writes a record of each run to --records/NAME. --beside trains one seed of another entry
first, so that both are measured on the same machine in the same hour.

The same command resumes.
"""

import argparse
import importlib

from scripts import markdown
from transformer.config import cli
from transformer.support.errors import UserError

# The flags of each experiment. Its module has the same name in scripts/reproduction.
EXPERIMENTS = {
    "table3": ("scale", "output", "rows", "seeds", "jobs", "retry_failed", "report", "readme"),
    "speedrun": ("entry", "output", "seeds", "beside", "records"),
}


def main(arguments: argparse.Namespace) -> None:
    name = arguments.experiment
    flags = (*EXPERIMENTS[name], "experiment", "overrides")
    defaults = make_parser()
    for flag, value in vars(arguments).items():
        if flag not in flags and value != defaults.get_default(flag):
            raise UserError(f"--{flag}={value}: {name} has no such flag; --help lists its flags")
    importlib.import_module(f"scripts.reproduction.{name}").main(arguments)


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.reproduce", __doc__, overrides="config")
    add = parser.add_argument
    add("experiment", choices=tuple(EXPERIMENTS), help="what to train")
    add("--output", help="folder of the runs (table3: runs/table3-SCALE; speedrun: required)")
    parser.add_number("--seeds", None, "seeds of each row (2), or of an entry (5)")
    add("--scale", choices=("mini", "paper"), help="table3: mini is a quarter of all widths")
    add("--rows", metavar="ROW,...", help="table3: only these rows and base (those of the scale)")
    parser.add_number("--jobs", 1, "table3: runs at a time")
    add("--retry_failed", action="store_true", help="table3: run again those that failed earlier")
    add("--report", action="store_true", help="table3: run nothing; print the tables of --output")
    markdown.add_flag(parser)
    add("--entry", metavar="FILE", help="speedrun: the config of the entry")
    add("--beside", metavar="FILE", help="speedrun: another entry to train one seed of")
    add(
        "--records",
        default="records/speedrun",
        help="speedrun: folder of all records (%(default)s)",
    )
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
