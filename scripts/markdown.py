"""What scripts write into files such as the README: tables, in parts that stand between two marks."""

from collections.abc import Sequence
from pathlib import Path

from transformer import files
from transformer.errors import UserError


def table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table. The first row is its header."""
    header, *others = rows
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, ["---"] * len(header), *others))


def replace(path: Path, name: str, text: str) -> None:
    """Puts `text` between `<!-- NAME: begin -->` and `<!-- NAME: end -->`.

    Raises:
      UserError: there is no such file, or the marks are not in it, once each and in order.
    """
    if not path.is_file():
        raise UserError(f"--readme={path}: no such file")
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = path.read_text(encoding="utf-8").partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise UserError(f"{path}: needs the lines {begin} and {end}, in this order")
    files.write_text(path, f"{before}{begin}\n{text}{end}{after}")
