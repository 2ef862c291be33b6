"""Markdown tables, and marked parts of files that tables replace."""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from transformer.support import files
from transformer.support.errors import UserError


def table(rows: Sequence[Sequence[str]], notes: Iterable[str] = ()) -> str:
    """Returns a Markdown table, with the first row as its header, and a paragraph for each note."""
    header, *cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [f"| {' | '.join(row)} |\n" for row in (header, ["---"] * len(header), *cells)]
    return "".join([*lines, *(f"\n{note}\n" for note in notes)])


def add_flag(parser: argparse.ArgumentParser) -> None:
    """Adds the flag --readme."""
    text = "Markdown file to write the table into, between its marks"
    parser.add_argument("--readme", help=text)


def check_marks(name: str, readme: str | None) -> None:
    """Raises UserError if a file is named that does not exist or lacks the marks of NAME: before
    hours of work.
    """
    if readme is not None:
        _split(name, readme)


def publish(text: str, name: str, readme: str | None) -> None:
    """Prints the text, or puts it between the marks of NAME in the file `readme`.

    Raises UserError without marks.
    """
    if readme is None:
        print(text, end="")
        return
    before, _, after = _split(name, readme)
    files.write_text(Path(readme), f"{before}{text}{after}")


def read_table(name: str, readme: str) -> list[list[str]]:
    """Returns the rows of the table between the marks of NAME, without its header.

    Raises UserError without marks.
    """
    lines = _split(name, readme)[1].splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines[2:]
        if line.startswith("|")
    ]


def _split(name: str, readme: str) -> tuple[str, str, str]:
    """Returns the file's text up to the first mark, between the marks, and from the last one."""
    path = Path(readme)
    if not path.is_file():
        raise UserError(f"--readme={path}: no such file")
    begin = f"<!-- {name}: begin -->\n"
    end = f"<!-- {name}: end -->"
    before, first_mark, rest = path.read_text("utf-8").partition(begin)
    text, last_mark, after = rest.partition(end)
    if not first_mark or not last_mark:
        raise UserError(f"{path}: needs the lines {begin.strip()} and {end}, in this order")
    return before + begin, text, end + after
