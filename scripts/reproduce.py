"""Trains rows of the paper's Tables 3 and 4, or an entry of the race to a BLEU score.

    python -m scripts.reproduce table3 --scale=mini
        [--output=DIR] [--readme=docs/results.md]
    python -m scripts.reproduce table3 --scale=paper --output=DIR
        [--jobs=N] --config.data.path=data/tfds
    python -m scripts.reproduce table3 --scale=mini --output=DIR --report
    python -m scripts.reproduce table4 --scale=mini|paper --trees=PATH --validation=PATH
        [--test=PATH] [--text=FILE] [--output=DIR]
    python -m scripts.reproduce speedrun --entry=configs/speedrun/NAME.py --output=DIR
        [--seeds=5] [--beside=configs/speedrun/OTHER.py] [--config.data.path=FOLDER]

table3 tests what the paper concludes from the table. --scale=mini has an eighth of all widths, some
of the rows and Multi30k (configs/table3_mini.py). --scale=paper has the paper's models and data.
Runs are trials of a sweep (scripts/sweep.py). All rows are trained with seed 0 first, so an
unfinished table soon has every row. More --seeds can be added later. With --report, --output may
also be a folder of records (scripts/record.py).

table4 is constituency parsing (configs/parsing.py, docs/parsing.md). The treebanks are those of
scripts.get_data. With --text, the first run parses a file of tokenized sentences, and more runs
train on these silver trees too.

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
    "table4": (
        "scale",
        "output",
        "seeds",
        "jobs",
        "retry_failed",
        "report",
        "readme",
        "trees",
        "validation",
        "test",
        "text",
        "gold_weight",
        "average",
    ),
    "speedrun": ("entry", "output", "seeds", "beside", "records"),
}


def main(arguments: argparse.Namespace) -> None:
    name = arguments.experiment
    flags = (*EXPERIMENTS[name], "experiment", "overrides")
    defaults = make_parser()
    for flag, value in vars(arguments).items():
        if flag not in flags and value != defaults.get_default(flag):
            raise UserError(f"--{flag}={value}: {name} has no such flag; --help lists its flags")
    if "scale" in flags and arguments.scale is None:
        raise UserError("--scale: is required, mini or paper (--help lists the flags)")
    # Missing marks in --readme are reported before hours of training.
    markdown.check_marks(name, arguments.readme)
    importlib.import_module(f"scripts.reproduction.{name}").main(arguments)


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.reproduce", __doc__, overrides="config")
    add = parser.add_argument
    add("experiment", choices=tuple(EXPERIMENTS), help="what to train")
    add("--output", help="folder of the runs (runs/TABLE-SCALE; speedrun: required)")
    parser.add_number(
        "--seeds", None, "seeds of each row (table3: 2, table4: 3), or of an entry (5)"
    )
    add("--scale", choices=("mini", "paper"), help="tables: small models, or the paper's")
    add("--rows", metavar="ROW,...", help="table3: only these rows and base (those of the scale)")
    parser.add_number("--jobs", 1, "tables: runs at a time")
    add("--retry_failed", action="store_true", help="tables: run again those that failed earlier")
    add("--report", action="store_true", help="tables: run nothing; print --output")
    for split, purpose in (("trees", "train"), ("validation", "validate"), ("test", "test")):
        add(f"--{split}", metavar="PATH,PATH", help=f"table4: treebanks to {purpose} on")
    add("--text", help="table4: file of tokenized sentences for silver trees")
    parser.add_number("--gold_weight", 1, "table4: readings of a gold tree in an epoch")
    parser.add_number("--average", 1, "table4: checkpoints to average")
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
