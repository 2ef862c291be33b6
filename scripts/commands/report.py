"""The work of `scripts.report`."""

import argparse
from pathlib import Path

from absl import logging

from scripts import markdown
from scripts.reporting.table import make_table, read_results
from scripts.sweeping.folder import expand_sweeps
from transformer import files
from transformer.errors import UserError

SENTENCES, MAX_SENTENCES = 3, 20  # of the split, of which attention is drawn


def main(arguments: argparse.Namespace) -> None:
    check_flags(arguments)
    paths = expand_sweeps(arguments.workdirs)
    if arguments.output is None:
        found = [evaluation for path in paths for evaluation in read_results(path)]
        markdown.publish(make_table(found), "results", arguments.readme)
        return
    from scripts.reporting.page import make_page
    from transformer.cache import enable_compilation_cache

    enable_compilation_cache()  # models of one architecture share their programs
    output = Path(arguments.output)
    count = SENTENCES if arguments.sentences is None else arguments.sentences
    page = make_page(paths, arguments.split, arguments.data, arguments.sentence, count)
    files.write_text(output, page)
    logging.info("%s: %.1f MB.", output, len(page.encode()) / 1e6)


def check_flags(arguments: argparse.Namespace) -> None:
    """Raises UserError for flags that do not go together, and for an output that cannot be written."""
    if arguments.output is None:
        names = ("split", "data", "sentence", "sentences")
        if ignored := [name for name in names if getattr(arguments, name)]:
            raise UserError(f"--{ignored[0]}: is for a page; give --output=FILE.html as well")
        return
    if arguments.readme is not None:
        raise UserError(f"--readme={arguments.readme}: is for a table; give it without --output")
    # These import Altair and JAX, which the table does not need.
    from scripts.charts.files import check_output
    from transformer.api import check_text

    check_output(Path(arguments.output), ("html",))
    for text in arguments.sentence:
        check_text(text, "--sentence")
    if not 0 <= (arguments.sentences or 0) <= MAX_SENTENCES:
        raise UserError(f"--sentences={arguments.sentences}: must be in 0 ... {MAX_SENTENCES}")
