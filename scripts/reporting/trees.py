"""Drawings of trees: the reference and the output of the first run, with the differences marked."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from scripts.reporting.scores import Comparison
from scripts.reporting.sections import Section
from transformer.decoding.trees.linearized import (
    Bracket,
    fits,
    is_close,
    is_open,
    read_brackets,
    repair,
)

COUNT = 6
MAX_WORDS = 18  # of a sentence whose trees can be read on a screen
CHARACTER = 8  # pixels
GAP = 14
LEVEL = 34


class Node(NamedTuple):
    """A label or a word, with the place of its parent; None for the root."""

    text: str
    x: float
    y: float
    parent: tuple[float, float] | None
    differs: bool


def tree_sections(compared: Comparison) -> list[Section]:
    """Returns the section of drawings, or none if the targets are not trees."""
    if compared.result is None or compared.first.config.data.target_form != "tree":
        return []
    first = compared.first
    sentences = []
    for line, (source, reference, hypothesis) in enumerate(
        zip(first.sources, first.references, first.hypotheses, strict=True), 1
    ):
        words = source.split()
        # Trees that are equal show nothing.
        if len(words) <= MAX_WORDS and reference != hypothesis and len(sentences) < COUNT:
            sentences.append({"line": line, "drawings": draw_pair(words, reference, hypothesis)})
    title = f"Trees of {compared.systems[0].label}"
    notes = [] if sentences else ["All trees of short sentences are as in the reference."]
    return [Section("trees", title, {"sentences": sentences}, notes)]


def draw_pair(words: Sequence[str], reference: str, hypothesis: str) -> list[dict[str, Any]]:
    """Returns the drawings of the reference and of the hypothesis, which is repaired if needed."""
    expected = reference.split()
    output = hypothesis.split()
    title = "output"
    if not fits(output, len(words)):
        output = repair(output, len(words))
        title = "output, repaired: it was no tree of the sentence"
    return [
        {"title": "reference"} | draw(words, expected, output),
        {"title": title} | draw(words, output, expected),
    ]


def draw(words: Sequence[str], symbols: Sequence[str], other: Sequence[str]) -> dict[str, Any]:
    """Returns the nodes of a tree, and the width and the height of its drawing.

    A bracket that `other` lacks differs.
    """
    common = Counter(read_brackets(other).brackets)

    # Words stand beside each other, and a bracket in the middle of its words.
    centers = []
    right = 0.0
    for word in words:
        width = CHARACTER * max(len(word), 2) + GAP
        centers.append(right + width / 2)
        right += width
    brackets = _brackets_as_they_open(symbols)
    bottom = LEVEL * (max((depth for _, depth in brackets), default=-1) + 2)
    nodes = []
    opened = []  # places of the nodes of the open brackets
    opening = iter(brackets)
    leaf = 0
    for symbol in symbols:
        parent = opened[-1] if opened else None
        if is_open(symbol):
            bracket, depth = next(opening)
            middle = (centers[bracket.start] + centers[bracket.end - 1]) / 2
            place = (middle, LEVEL * (depth + 0.5))
            differs = common[bracket] == 0
            common[bracket] -= 1
            nodes.append(Node(bracket.label, *place, parent, differs))
            opened.append(place)
        elif is_close(symbol):
            opened.pop()
        else:
            nodes.append(Node(words[leaf], centers[leaf], bottom - LEVEL / 2, parent, False))
            leaf += 1
    return {"nodes": nodes, "width": right, "height": bottom}


def _brackets_as_they_open(symbols: Sequence[str]) -> list[tuple[Bracket, int]]:
    """Returns each bracket with its depth, 0 for the outermost, in the order of opening."""
    brackets = []
    opened = []
    leaves = 0
    for symbol in symbols:
        if is_open(symbol):
            opened.append(len(brackets))
            brackets.append((Bracket(symbol[1:], leaves, leaves), len(opened) - 1))
        elif is_close(symbol):
            index = opened.pop()
            bracket, depth = brackets[index]
            brackets[index] = bracket._replace(end=leaves), depth
        else:
            leaves += 1
    return brackets
