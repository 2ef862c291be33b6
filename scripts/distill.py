"""Trains teachers, lets them translate, and trains students on what they wrote, as a plan file
describes it.

    python -m scripts.distill --plan=configs/distillation/X.py --workdir=DIR [--config.KEY=VALUE ...]
    python -m scripts.distill --plan=configs/distillation/X.py --workdir=DIR --report [--readme=FILE]

The same command continues: no stage is done twice. --config.KEY=VALUE replaces a key of all configs
of the plan. At the end, and at any time with --report, it prints a table of what the plan measures,
and draws DIR/report.svg.
"""

import argparse

from scripts import markdown
from transformer.config import cli
from transformer.support import files


def main(arguments: argparse.Namespace) -> None:
    from scripts.distillation import plan, report, stages
    from scripts.distillation.folder import Folder

    folder = Folder(files.expanded(arguments.workdir), arguments.overrides)
    planned = plan.load(arguments.plan)
    markdown.check_marks("distill", arguments.readme)
    if arguments.report:
        folder.check(planned)
    else:
        with folder.locked():
            stages.run(planned, folder)
    report.publish(planned, folder, arguments.readme)


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.distill", __doc__, overrides="config")
    parser.add_argument("--plan", required=True, help="the stages, as in configs/distillation")
    parser.add_argument("--workdir", required=True, help="folder of all stages")
    parser.add_argument("--report", action="store_true", help="run nothing; print the table")
    markdown.add_flag(parser)
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
