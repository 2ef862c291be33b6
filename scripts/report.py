"""Reports on runs, made from their workdirs: an HTML page to look at, or a Markdown table of results.

    python -m scripts.report WORKDIR [WORKDIR ...] --output=report.html [--split=valid|test] [--sentence=TEXT ...]
    python -m scripts.report WORKDIR [WORKDIR ...] [--readme=README.md]

The page is one file that needs no network: settings, curves, scores with their differences, the sentences that differ
most, and attention maps and beam searches of some sentences. A run may be incomplete, or have no evaluation. The page
then has a note about it.

The table has a row for each system and each way in which it was evaluated. Runs that differ only in their seed are one
system; if runs differ in more, the first column shows in what. Scores are the mean over seeds and, with several, the
sample standard deviation. Minutes are those of the training loop, validations included. Ensembles are left out.
--readme replaces the text between two marks in a file with the table. Without it the table is printed.
"""

import argparse
from pathlib import Path

from absl import logging

from scripts import markdown
from scripts.reporting.table import make_table, read_results
from transformer import cli, files
from transformer.data.sources import source as sources
from transformer.errors import UserError

SENTENCES, MAX_SENTENCES = 3, 20  # of the split, of which attention is drawn


def main(arguments: argparse.Namespace) -> None:
    paths = [Path(name) for name in arguments.workdirs]
    check_flags(arguments)
    if arguments.output is None:
        found = [evaluation for path in paths for evaluation in read_results(path)]
        markdown.publish(make_table(found), "results", arguments.readme)
        return
    from scripts.reporting.page import make_page

    output = Path(arguments.output)
    count = SENTENCES if arguments.sentences is None else arguments.sentences
    page = make_page(paths, arguments.split, arguments.sentence, count)
    files.write_text(output, page)
    logging.info("%s: %.1f MB.", output, len(page.encode()) / 1e6)


def check_flags(arguments: argparse.Namespace) -> None:
    """Raises UserError for flags that do not go together, and for an output that cannot be written."""
    if arguments.output is None:
        given = {"split": arguments.split, "sentence": arguments.sentence, "sentences": arguments.sentences}
        if ignored := [name for name, value in given.items() if value]:
            raise UserError(f"--{ignored[0]}: is for a page; give --output=FILE.html as well")
        return
    if arguments.readme is not None:
        raise UserError(f"--readme={arguments.readme}: is for a table; give it without --output")
    from scripts.charts.files import check_output  # imports Altair and JAX, which the table does not need

    check_output(Path(arguments.output), ("html",))
    if not 0 <= (arguments.sentences or 0) <= MAX_SENTENCES:
        raise UserError(f"--sentences={arguments.sentences}: must be in 0 ... {MAX_SENTENCES}")


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.report", __doc__)
    parser.add_argument("workdirs", nargs="+", metavar="WORKDIR", help="workdir of a run")
    parser.add_argument("--output", metavar="FILE.html", help="write a page instead of a table")
    parser.add_argument("--split", choices=sources.SPLITS, help="the split whose evaluations the page compares")
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
