"""Trains teachers, translates with them, and trains students on the translations, as a plan says.

    python -m scripts.distill --plan=configs/distillation/X.py --workdir=DIR
        [--config.KEY=VALUE ...]
    python -m scripts.distill --plan=configs/distillation/X.py --workdir=DIR --report
        [--readme=FILE]

The same command resumes: finished stages are not run again. --config.KEY=VALUE replaces a key in
all configs of the plan. At the end, and at any time with --report, it prints a table of the plan's
measurements and draws DIR/report.svg.
"""

import argparse

from scripts import markdown
from transformer.config import cli
from transformer.support import files


def main(arguments: argparse.Namespace) -> None:
    from scripts.distillation import pipeline, report, stages
    from scripts.distillation.folder import PipelineFolder

    folder = PipelineFolder(files.expand_user(arguments.workdir), arguments.overrides)
    all_stages = pipeline.load(arguments.plan)
    # Missing marks in --readme are reported before hours of training.
    markdown.check_marks("distill", arguments.readme)
    if arguments.report:
        folder.check(all_stages)
    else:
        with folder.locked():
            stages.run(all_stages, folder)
    report.publish(all_stages, folder, arguments.readme)


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.distill", __doc__, overrides="config")
    parser.add_argument("--plan", required=True, help="the stages, as in configs/distillation")
    parser.add_argument("--workdir", required=True, help="folder of all stages")
    parser.add_argument("--report", action="store_true", help="run nothing; print the table")
    markdown.add_flag(parser)
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
