"""Word alignments in the format of Pharaoh: a line for each pair, with SOURCE-TARGET links of words numbered from 0."""

import re
from pathlib import Path

from transformer.data.sources.lines import read_lines_of_pairs
from transformer.errors import UserError

LINK = re.compile(r"(\d{1,4})([-?p])(\d{1,4})")  # 0-1 is sure; 0?1 and 0p1 are possible


def parse_links(line: str, where: str) -> list[tuple[int, int, bool]]:
    """Returns (source word, target word, is sure) of each link. Raises UserError, with `where`, for anything else."""
    links = []
    for part in line.split():
        if not (match := LINK.fullmatch(part)):
            raise UserError(f"{where}: {part:.40} is not a link such as 0-1, or 0?1 (possible)")
        links.append((int(match[1]), int(match[3]), match[2] == "-"))
    return links


def read_links(path: Path | None, count: int, label: str) -> list[list[tuple[int, int]]]:
    """Reads the links, sure and possible, of each of the `count` pairs of a corpus; without a file they have none.

    Raises UserError if the file has another number of lines, or a part is not a link.
    """
    lines = [""] * count if path is None else read_lines_of_pairs(path, count, label)
    numbered = enumerate(lines, start=1)
    return [[link[:2] for link in parse_links(line, f"{path}, line {number}")] for number, line in numbered]
