"""Reports on runs, made from their workdirs: an HTML page, or a Markdown table of results.

    python -m scripts.report WORKDIR [WORKDIR ...] --output=report.html
        [--split=train|valid|test] [--data=FOLDER] [--sentence=TEXT ...]
    python -m scripts.report WORKDIR [WORKDIR ...] [--metric=bleu] [--readme=docs/results.md]

The page is one file that needs no network: settings, curves, scores with their differences, the
sentences that differ most, and attention maps and beam searches of some sentences. A run may be
incomplete, or have no evaluation. The page then has a note about it.

The table has a row for each system and each way in which it was evaluated. Runs that differ only in
their seeds are one system. If runs differ in other settings, the first column shows them. Scores
are the mean over seeds and, with several, the sample standard deviation. Minutes are the time of
the training loop, including validations. Ensembles are left out. A sweep's folder is replaced by
its complete trials. With --metric, the table has the scores of one metric: a row for each text, and
a column for each system.

--readme replaces the text between two marks in a file with the table. Otherwise the table is
printed.
"""

import argparse
import functools
from pathlib import Path

from absl import logging

from scripts import markdown, score_flags
from transformer.config import cli
from transformer.data.sources.source import SPLITS
from transformer.support import cache, files
from transformer.support.errors import UserError

SENTENCES = 3  # of the split, whose attention is drawn
MAX_SENTENCES = 20


def main(arguments: argparse.Namespace) -> None:
    check_flags(arguments)
    from scripts.reporting.table import make_matrix, make_table
    from scripts.results.records import read_results
    from scripts.sweeping.expansion import expand_sweeps

    paths = expand_sweeps(arguments.workdirs)
    # Without --output, the report is a table.
    if arguments.output is None:
        evaluations = [evaluation for path in paths for evaluation in read_results(path)]
        if arguments.metric is None:
            table = make_table(evaluations)
        else:
            table = make_matrix(evaluations, arguments.metric)
        markdown.publish(table, "results", arguments.readme)
        return
    from scripts.reporting.page import make_page
    from scripts.results.external_scores import attach

    cache.enable_compilation_cache()  # models of one architecture share their programs
    count = SENTENCES if arguments.sentences is None else arguments.sentences
    compared_scores = functools.partial(attach, arguments=arguments)
    page = make_page(
        paths, arguments.split, arguments.data, arguments.sentence, count, compared_scores
    )
    files.write_text(Path(arguments.output), page)
    logging.info("%s: %.1f MB.", arguments.output, len(page.encode()) / 1e6)


def check_flags(arguments: argparse.Namespace) -> None:
    """Raises UserError for flags that do not go together, and for an unusable output."""
    if arguments.output is None:
        for name in ("split", "data", "sentence", "sentences", "scores", "scorer"):
            if getattr(arguments, name):
                raise UserError(f"--{name}: is for a page; give --output=FILE.html as well")
        return
    for name in ("readme", "metric"):
        value = getattr(arguments, name)
        if value is not None:
            raise UserError(f"--{name}={value}: is for a table; give it without --output")
    from scripts.charts.theme import check_output
    from transformer.decoding.control.arguments import check_text

    check_output(Path(arguments.output), ("html",))
    for text in arguments.sentence:
        check_text(text, "--sentence")


def make_parser() -> cli.Parser:
    parser = cli.Parser("scripts.report", __doc__)
    parser.add_argument(
        "workdirs", nargs="+", metavar="WORKDIR", help="workdir of a run or a sweep"
    )
    parser.add_argument("--metric", help="a table of this metric by text and system")
    parser.add_argument("--output", help="write a page instead of a table")
    parser.add_argument(
        "--split", choices=SPLITS, help="the split whose evaluations the page compares"
    )
    parser.add_argument("--data", metavar="FOLDER", help="another run or text, whose split that is")
    parser.add_argument(
        "--sentence", action="append", default=[], help="a sentence whose attention the page shows"
    )
    count = "show attention for N sentences of the split as well (3)"
    parser.add_argument("--sentences", type=int, choices=range(MAX_SENTENCES + 1), help=count)
    score_flags.add_flags(parser, scores=True)
    markdown.add_flag(parser)
    return parser


if __name__ == "__main__":
    cli.run(make_parser(), main)
