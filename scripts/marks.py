"""The parts of a file, such as the README, that a script writes: they stand between two marks."""

from pathlib import Path

from transformer import files
from transformer.errors import UserError


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
