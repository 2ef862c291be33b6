"""Marks within a sentence: inline tags of HTML, and emoji that the vocabulary lacks.

The sentence is translated without its marks. They return around, or after, the words that
cross-attention links to the words at their places in the source. A model without cross-attention,
or an ensemble, links words in their order.
"""

import contextlib
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from scripts.alignment.links import choose_heads, mean_weights
from transformer.api import Model
from transformer.data.corpus.annotations import word_starts
from transformer.decoding.control.phrases import WORD
from transformer.support.errors import UserError

Escape = Callable[[str], str]
EDGE = "\x02"  # begins and ends a sentence
MOST = 100  # marks of a sentence that are aligned
_MARKS = (  # in classes of characters: punctuation and symbols
    r"!-/:-@\[-`{-~\xa1-\xa9\xab-\xb4\xb6-\xb9\xbb-\xbf\u060c\u061b\u061f\u06d4\u0964\u0965"
    r"\u2010-\u205e\u3000-\u303f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
)
_ALONE = rf"(?!{WORD.pattern})\w"  # a character of a script without spaces
# The units that are linked: punctuation, such a character, or another word.
_UNIT = re.compile(rf"{EDGE}|[{_MARKS}]+|{_ALONE}|(?:(?!{_ALONE})[^\s{EDGE}{_MARKS}])+")
_PUNCTUATION = re.compile(rf"[{_MARKS}]")
_AFTER_WORD = re.compile(rf"[{_MARKS}]*"), re.compile(rf"[{_MARKS}]*\s?")
NO_LINK = -1
FREE = -1  # characters that no element owns
TAKEN = -2  # characters outside
LARGE = 1e4  # more than the weights of all words of a sentence
LEAST = 1e-3  # of a link, such as that of punctuation


class Mark(NamedTuple):
    """A part of a sentence that is not in its text.

    element: the name of the element that a tag opens, or else closes; of other marks "".
    position: the number of characters of the text before it.
    """

    text: str
    element: str = ""
    opens: bool = False
    position: int = 0


@dataclass
class Element:
    """An element around the characters `start` to `stop` of a sentence between `EDGE`s.

    A mark that is no tag has no characters. If one of the tags is in another sentence, it is empty
    here, and the element contains the edge.
    """

    start: int
    stop: int
    opening: str = ""
    closing: str = ""
    children: list["Element"] = field(default_factory=list)


def parse(marks: Sequence[Mark], start: int, end: int) -> Element | None:
    """Returns an element without tags around a sentence and its marks.

    start, end: the place of the sentence in the text to which the positions of the marks refer.
    Returns None if their tags cannot be aligned: these are not well nested, or more than `MOST`.
    """
    if len(marks) > MOST:
        return None
    root = Element(0, end - start + 2)
    stack = [("", root)]
    for markup, name, opens, position in marks:
        position += 1 - start
        innermost, element = stack[-1]
        if opens or not name:
            child = Element(position, root.stop if opens else position, markup)
            element.children.append(child)
            stack += [(name, child)] if opens else []
        elif name == innermost:
            element.stop = position
            element.closing = markup
            stack.pop()
        elif element is root:  # it begins in an earlier sentence
            root.children = [Element(0, position, closing=markup, children=root.children)]
        else:
            return None
    return root


def peel(element: Element, end: int) -> tuple[str, list[Element], str]:
    """Returns the marks of an element before all text, within it, and after it.

    end: the place of the edge behind the text.
    """
    before = [child for child in element.children if child.stop <= 1]
    after = [child for child in element.children if child.start >= end]
    inside = element.children[len(before) : len(element.children) - len(after)]
    opening = element.opening + serialize(before)
    closing = serialize(after) + element.closing
    if inside and inside[0].start <= 1 and inside[0].stop >= end:
        first, inside, last = peel(inside[0], end)
        return opening + first, inside, last + closing
    return opening, inside, closing


def serialize(elements: Sequence[Element]) -> str:
    nested = ((one.opening, serialize(one.children), one.closing) for one in elements)
    return "".join(itertools.chain(*nested))


def insert(
    model: Model,
    source: str,
    elements: Sequence[Element],
    target: str,
    escape: Escape,
) -> str:
    """Returns `target`, the translation of `source`, with these elements, and its text escaped."""
    if not elements:
        return escape(target)
    insertion = _Insertion(model, _Side(source), _Side(target), escape)
    return insertion.render(elements, range(len(target) + 2))[1:-1]


class _Side:
    """A text between two `EDGE`s in units: the text of each, its place, and whether it is a word.

    after: whether each unit but the first is punctuation that touches the one before it.
    before: whether each unit but the last is punctuation that touches the next one.
    """

    def __init__(self, text: str) -> None:
        self.text = EDGE + text + EDGE
        units = list(_UNIT.finditer(self.text))
        self.units = np.array([unit[0] for unit in units])
        self.starts, self.stops = np.array([unit.span() for unit in units]).T
        self.is_word = np.array([not _PUNCTUATION.match(unit[0]) for unit in units])
        touches = self.stops[:-1] == self.starts[1:]
        self.after = touches & ~self.is_word[1:]
        self.before = touches & ~self.is_word[:-1]

    def shares(self, pieces: Sequence[str]) -> Float[np.ndarray, "_ U"]:
        """Returns the part of each token in each unit.

        Tokens share a word in proportion to the lengths of their pieces.
        """
        lengths = np.cumsum([0, *map(len, pieces)])
        ends = [*np.flatnonzero(word_starts(pieces)[1:]) + 1, len(pieces)]  # of words, in tokens
        stops = [word.end() for word in re.finditer(rf"[^\s{EDGE}]+", self.text)]
        if len(ends) != len(stops):  # other spaces after normalization
            ends = [len(pieces)]
            stops = [len(self.text) - 1]
        edges = np.interp(lengths, lengths[[0, *ends]], [1, *stops])[:, None]
        common = np.minimum(edges[1:], self.stops) - np.maximum(edges[:-1], self.starts)
        common = common.clip(0)
        return common / np.maximum(common.sum(axis=1, keepdims=True), 1e-6)


def _word_weights(model: Model, source: _Side, target: _Side) -> Float[np.ndarray, "T S"]:
    """Returns the weight of each target unit's link to each source unit: 0 for punctuation."""
    places = (np.cumsum(side.is_word) / side.is_word.sum() for side in (target, source))
    weights = 1e-4 * (1 - np.abs(np.subtract.outer(*places)))
    # Names and numbers are linked to their copies.
    weights += (target.units[:, None] == source.units) & ~np.char.islower(source.units)
    # A model of another kind has no attention, or a text is too long for it.
    with contextlib.suppress(UserError):
        attention = model.attention(source.text[1:-1], target.text[1:-1])
        heads = choose_heads(model.config.model, model.config.training.guided_heads or "average")
        source_shares = source.shares(attention.source_pieces[attention.tag_length : -1])
        target_shares = target.shares(attention.target_output_pieces[:-1])
        linked = target_shares.T @ mean_weights(attention, heads) @ source_shares
        # The geometric mean of its probabilities in both directions, but for a factor of each row.
        weights += linked / np.sqrt(np.maximum(linked[target.is_word].sum(axis=0), 1e-9))
    return weights * np.outer(target.is_word, source.is_word)


class _Insertion:
    """Inserts marks into a target.

    links: the position in the source that each character of the target is linked to, or `NO_LINK`.
      The edges are linked to those of the source, and punctuation as the word or edge it touches.
    sizes: the part of each character in the weight of its link.
    """

    def __init__(self, model: Model, source: _Side, target: _Side, escape: Escape) -> None:
        self.source = source
        self.target = target
        self.escape = escape
        self.weights = np.pad(_word_weights(model, source, target)[1:-1, 1:-1], 1)
        self.weights[[0, -1], [0, -1]] = 1
        linked = np.eye(len(source.units))[self.weights.argmax(axis=1)]
        linked *= self.weights.any(axis=1, keepdims=True)
        linked[1:, 1:] += linked[:-1, :-1] * np.outer(target.after, source.after)
        linked[:-1, :-1] += linked[1:, 1:] * np.outer(target.before, source.before) * 2
        self.links = np.full(len(target.text), NO_LINK)
        self.sizes = np.zeros(len(target.text))
        for unit, row in enumerate(linked):
            link = row.argmax()
            span = slice(target.starts[unit], target.stops[unit])
            if row.any():
                is_copy = target.units[unit] == source.units[link]
                length = len(target.units[unit])
                self.links[span] = source.starts[link] + is_copy * np.arange(length)
                self.sizes[span] = max(self.weights[unit, link], LEAST) / length
        self.sizes[[0, -1]] = LARGE  # never left out

    def render(self, elements: Sequence[Element], inside: range) -> str:
        """Returns these characters of the target with the elements inside."""
        rendered = []
        at = inside.start
        placed = zip(self._places(elements, inside), elements, strict=True)
        for place, element in sorted(placed, key=lambda item: (item[0].start, item[0].stop)):
            rendered += [self.escape(self.target.text[at : place.start]), element.opening]
            rendered += [self.render(element.children, place), element.closing]
            at = place.stop
        return "".join([*rendered, self.escape(self.target.text[at : inside.stop])])

    def _places(self, elements: Sequence[Element], inside: range) -> list[range]:
        """Returns the characters that each element surrounds. No two elements share one."""
        owners = self._owners(elements, inside)
        places = [
            _best(np.select([owners == number, owners == FREE], [self.sizes, -self.sizes], -LARGE))
            for number in range(len(elements))
        ]
        for number, element in enumerate(elements):
            if not places[number]:
                at = self._gap(element, inside)
                for other, place in enumerate(places):
                    if at in place[1:]:
                        at = place.stop if other < number else place.start
                        # Punctuation after the last word of an earlier element comes first.
                        text = self.target.text if other < number else ""
                        while owners[at] == FREE and _PUNCTUATION.match(text, at):
                            at += 1
                places[number] = range(at, at)
        return places

    def _owners(self, elements: Sequence[Element], inside: range) -> Int[np.ndarray, " T"]:
        """Returns the number of the element that has the source of each character, or `FREE`.

        Characters outside are `TAKEN`.
        An element without any has the word with the largest weight for it, if that is free.
        """
        owners = np.full(len(self.links), TAKEN)
        owners[inside.start : inside.stop] = FREE
        for number, element in enumerate(elements):
            is_inside = (self.links >= element.start) & (self.links < element.stop)
            owners[(owners == FREE) & is_inside] = number
        for number, element in enumerate(elements):
            columns = (self.source.stops > element.start) & (self.source.starts < element.stop)
            weights = self.weights[:, columns].sum(axis=1)
            word = slice(self.target.starts[weights.argmax()], self.target.stops[weights.argmax()])
            if number not in owners and weights.any() and (owners[word] == FREE).all():
                owners[word] = number
        return owners

    def _gap(self, element: Element, inside: range) -> int:
        """Returns the position of an element without characters.

        It is before the punctuation that follows in the source, or else after the word before it.
        """
        links = self.links[inside.start : inside.stop]
        following = np.searchsorted(self.source.starts, element.stop)
        if not self.source.is_word[following] and self.source.starts[following] in links:
            return inside.start + int(np.argmax(links == self.source.starts[following]))
        before = np.where(links < element.start, links, NO_LINK)
        if before.max(initial=NO_LINK) == NO_LINK:
            return inside.start
        at = inside.start + _best(np.where(before == before.max(), 1, -1)).stop
        # Between two words, the space is on the same side as in the source.
        follows_space = self.source.text[element.start - 1].isspace()
        return _AFTER_WORD[follows_space].match(self.target.text, at, inside.stop).end()


def _best(gains: Float[np.ndarray, " T"]) -> range:
    """Returns the consecutive characters with the largest sum of gains; none if none is above 0."""
    sums = np.cumsum([0, *gains])
    lowest = np.minimum.accumulate(sums)
    stop = int(np.argmax(sums - lowest))
    start = int(np.flatnonzero(sums[: stop + 1] == lowest[stop])[-1])
    return range(start, stop)
