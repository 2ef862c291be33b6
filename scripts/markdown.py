"""Markdown tables, and marked parts of files that tables replace."""

from collections.abc import Sequence
from pathlib import Path

from transformer import files
from transformer.errors import UserError


def table(rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table, with the first row as its header."""
    header, *cells = rows
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, ["---"] * len(header), *cells))


def publish(text: str, name: str, readme: str | None) -> None:
    """Prints the text, or replaces that between `<!-- NAME: begin -->` and `<!-- NAME: end -->` in the file `readme`.

    Raises UserError if the file does not exist or lacks these lines.
    """
    if readme is None:
        print(text, end="")
        return
    before, _, after = _split(readme, name)
    files.write_text(Path(readme), f"{before}{text}{after}")


def _split(readme: str, name: str) -> tuple[str, str, str]:
    """Returns the file's text up to the first mark, included, the text between the marks, and the rest."""
    path = Path(readme)
    if not path.is_file():
        raise UserError(f"--readme={path}: no such file")
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    before, first_mark, rest = path.read_text(encoding="utf-8").partition(begin)
    text, last_mark, after = rest.partition(end)
    if not first_mark or not last_mark:
        raise UserError(f"{path}: needs the lines {begin.strip()} and {end}, in this order")
    return before + begin, text, end + after
