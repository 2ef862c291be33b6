"""Reports on runs, made from their workdirs: an HTML page to look at, or a Markdown table of results.

    python -m scripts.report WORKDIR [WORKDIR ...] --output=report.html [--split=train|valid|test] [--data=WORKDIR]
        [--sentence=TEXT ...]
    python -m scripts.report WORKDIR [WORKDIR ...] [--readme=docs/results.md]

The page is one file that needs no network: settings, curves, scores with their differences, the sentences that differ
most, and attention maps and beam searches of some sentences. A run may be incomplete, or have no evaluation. The page
then has a note about it.

The table has a row for each system and each way in which it was evaluated. Runs that differ only in their seed are one
system; if runs differ in more, the first column shows in what. Scores are the mean over seeds and, with several, the
sample standard deviation. Minutes are those of the training loop, validations included. Ensembles are left out.
A sweep's folder is replaced by its complete trials.

--readme replaces the text between two marks in a file with the table. Without it the table is printed.
"""

import argparse

from transformer import cli
from transformer.data.sources.source import SPLITS


def main(arguments: argparse.Namespace) -> None:
    from scripts.commands import report

    report.main(arguments)


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.report", __doc__)
    parser.add_argument("workdirs", nargs="+", metavar="WORKDIR", help="workdir of a run or a sweep")
    parser.add_argument("--output", metavar="FILE.html", help="write a page instead of a table")
    parser.add_argument("--split", choices=SPLITS, help="the split whose evaluations the page compares")
    parser.add_argument("--data", metavar="WORKDIR", help="another run, whose split that is")
    parser.add_argument(
        "--sentence", metavar="TEXT", action="append", default=[], help="a sentence whose attention the page shows"
    )
    parser.add_argument(
        "--sentences", metavar="N", type=int, help="show attention for N sentences of the split as well (3)"
    )
    parser.add_argument("--readme", metavar="FILE", help="Markdown file to write the table into, between its marks")
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
