"""Alignments in the format of Pharaoh: SOURCE-TARGET links, separated by spaces, with words numbered from 0."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from scripts.alignment.links import Links
from transformer.data.sources.lines import read_text_file
from transformer.errors import UserError

LINK = re.compile(r"(\d+)([-?p])(\d+)")  # 0-1 is sure; 0?1 and 0p1 are possible


class Gold(NamedTuple):
    """The links of an annotated sentence pair. The sure ones are possible as well."""

    sure: Links
    possible: Links


class ErrorRate(NamedTuple):
    """The alignment error rate of Och and Ney (2003), precision and recall, as fractions."""

    rate: float
    precision: float
    recall: float


def format_links(links: Links) -> str:
    return " ".join(f"{source}-{target}" for source, target in sorted(links, key=lambda link: link[::-1]))


def parse_gold(line: str) -> Gold:
    """Reads an annotated line. Raises ValueError if a part of it is not a link."""
    sure, possible = set(), set()
    for part in line.split():
        if not (match := LINK.fullmatch(part)):
            raise ValueError(f"{part} is not a link such as 0-1 (sure) or 0?1 (possible)")
        link = int(match[1]), int(match[3])
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return Gold(frozenset(sure), frozenset(possible))


def read_gold(path: Path) -> list[Gold]:
    """Reads annotated links. Raises UserError, with the number of the line, if a part is not a link."""
    gold = []
    for number, line in enumerate(read_text_file(path), start=1):
        try:
            gold.append(parse_gold(line))
        except ValueError as error:
            raise UserError(f"--gold={path}: line {number}: {error}") from error
    return gold


def error_rate(aligned: Sequence[Links], gold: Iterable[Gold]) -> ErrorRate:
    """Returns the error rate of all sentences together: 1 - (|A & S| + |A & P|) / (|A| + |S|)."""
    pairs = list(zip(aligned, gold, strict=True))
    num_links, num_sure = sum(map(len, aligned)), sum(len(annotated.sure) for _, annotated in pairs)
    in_sure = sum(len(links & annotated.sure) for links, annotated in pairs)
    in_possible = sum(len(links & annotated.possible) for links, annotated in pairs)
    precision, recall = in_possible / max(num_links, 1), in_sure / max(num_sure, 1)
    return ErrorRate(1 - (in_sure + in_possible) / max(num_links + num_sure, 1), precision, recall)
