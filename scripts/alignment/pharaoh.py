"""Alignments in the format of Pharaoh: SOURCE-TARGET links, separated by spaces, with words numbered from 0."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scripts.alignment.links import Links

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
        if not (found := LINK.fullmatch(part)):
            raise ValueError(f"{part} is not a link such as 0-1 (sure) or 0?1 (possible)")
        link = int(found[1]), int(found[3])
        possible.add(link)
        if found[2] == "-":
            sure.add(link)
    return Gold(frozenset(sure), frozenset(possible))


def error_rate(found: Sequence[Links], gold: Iterable[Gold]) -> ErrorRate:
    """Returns the error rate of all sentences together: 1 - (|A & S| + |A & P|) / (|A| + |S|)."""
    links = sure = in_sure = in_possible = 0
    for each, annotated in zip(found, gold, strict=True):
        links, sure = links + len(each), sure + len(annotated.sure)
        in_sure, in_possible = in_sure + len(each & annotated.sure), in_possible + len(each & annotated.possible)
    precision, recall = in_possible / max(links, 1), in_sure / max(sure, 1)
    return ErrorRate(1 - (in_sure + in_possible) / max(links + sure, 1), precision, recall)
