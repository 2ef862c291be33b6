"""Markdown tables, and marked parts of files that tables replace."""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from transformer.data.sources.lines import read_text_file
from transformer.support import files
from transformer.support.errors import UserError


def table(rows: Sequence[Sequence[str]], notes: Iterable[str] = ()) -> str:
    """Returns a Markdown table, with the first row as its header, and a paragraph for each note."""
    # A vertical bar in a cell would end it.
    header, *body = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    rule = ["---"] * len(header)
    lines = [f"| {' | '.join(row)} |\n" for row in (header, rule, *body)]
    paragraphs = [f"\n{note}\n" for note in notes]
    return "".join(lines + paragraphs)


def add_flag(parser: argparse.ArgumentParser) -> None:
    """Adds the flag --readme."""
    parser.add_argument("--readme", help="Markdown file to write the table into, between its marks")


def check_marks(name: str, readme: str | None) -> None:
    """Raises UserError if the file `readme` does not exist or lacks the marks of `name`.

    Commands call it before hours of work. Without `readme` it does nothing.
    """
    if readme is not None:
        _split(name, readme)


def publish(text: str, name: str, readme: str | None) -> None:
    """Prints the text, or writes it between the marks of `name` in the file `readme`.

    Raises UserError if the file does not exist or lacks the marks.
    """
    if readme is None:
        print(text, end="")
        return
    before, _, after = _split(name, readme)
    files.write_text(Path(readme), f"{before}{text}{after}")


def read_table(name: str, readme: str) -> list[list[str]]:
    """Returns the rows of the table between the marks of `name`, without its header.

    Raises UserError if the file does not exist or lacks the marks.
    """
    # The first two lines are the header and the rule below it.
    text = read_text(name, readme)
    rows = [line.strip("|").split("|") for line in text.splitlines()[2:] if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows]


def read_text(name: str, readme: str) -> str:
    """Returns the text between the marks of `name`.

    Raises UserError if the file does not exist or lacks the marks.
    """
    return _split(name, readme)[1]


def _split(name: str, readme: str) -> tuple[str, str, str]:
    """Returns the file's text up to the first mark, between the marks, and from the last mark."""
    path = Path(readme)
    if not path.is_file():
        raise UserError(f"--readme={path}: no such file")
    begin = f"<!-- {name}: begin -->\n"
    end = f"<!-- {name}: end -->"
    content = "".join(f"{line}\n" for line in read_text_file(path))
    before, first_mark, rest = content.partition(begin)
    text, last_mark, after = rest.partition(end)
    if not first_mark or not last_mark:
        raise UserError(f"{path}: needs the lines {begin.strip()} and {end}, in this order")
    return before + begin, text, end + after
