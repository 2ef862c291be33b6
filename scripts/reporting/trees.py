"""Drawings of trees: the reference and the output of the first run, with the differences marked."""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from scripts.reporting.scores import Comparison
from scripts.reporting.sections import Section
from transformer.decoding.trees.linearized import fits, is_close, is_open, read_brackets, repair

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
        is_wanted = reference != hypothesis and len(sentences) < COUNT
        # A reference may be of other words than its source.
        if is_wanted and 0 < len(words) <= MAX_WORDS and fits(reference.split(), len(words)):
            sentences.append({"line": line, "drawings": draw_pair(words, reference, hypothesis)})
    title = f"Trees of {compared.systems[0].label}"
    notes = [] if sentences else ["All trees of short sentences are as in the reference."]
    return [Section("trees", title, {"sentences": sentences}, notes)]


def draw_pair(words: Sequence[str], reference: str, hypothesis: str) -> list[dict[str, Any]]:
    """Returns the drawings of the reference and of the hypothesis, which is repaired if needed."""
    expected = reference.split()
    output = repair(hypothesis.split(), len(words))
    title = "output"
    if output != hypothesis.split():
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
    depths = accumulate(is_open(symbol) - is_close(symbol) for symbol in symbols)
    height = LEVEL * (max(depths) + 1)

    # Brackets in the order of opening: of equal ones, the outer bracket comes first.
    closed = read_brackets(symbols).brackets
    brackets = iter(sorted(reversed(closed), key=lambda bracket: (bracket.start, -bracket.end)))
    leaves = zip(words, centers, strict=True)
    nodes = []
    opened = []  # places of the nodes of the open brackets
    for symbol in symbols:
        parent = opened[-1] if opened else None
        y = LEVEL * (len(opened) + 0.5)
        if is_open(symbol):
            bracket = next(brackets)
            middle = (centers[bracket.start] + centers[bracket.end - 1]) / 2
            nodes.append(Node(bracket.label, middle, y, parent, common[bracket] <= 0))
            common[bracket] -= 1
            opened.append((middle, y))
        elif is_close(symbol):
            opened.pop()
        else:
            word, center = next(leaves)
            nodes.append(Node(word, center, y, parent, False))
    return {"nodes": nodes, "width": right, "height": height}
