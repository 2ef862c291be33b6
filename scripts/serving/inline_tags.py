"""Marks within a sentence: inline tags of HTML, and emoji that the vocabulary lacks.

The sentence is translated without its marks. They return around, or after, the words that cross-attention
links to the words at their places in the source. A model without cross-attention, or an ensemble, links
words in their order.
"""

import collections
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from scripts.alignment.links import choose_heads, mean_weights
from transformer.api import Model
from transformer.data.corpus.annotations import word_starts
from transformer.decoding.phrases import WORD
from transformer.errors import UserError

Span = tuple[int, int]
MOST = 100  # marks of a sentence that are aligned
_MARKS = (  # in classes of characters: punctuation and symbols
    r"!-/:-@\[-`{-~\xa1-\xa9\xab-\xb4\xb6-\xb9\xbb-\xbf\u060c\u061b\u061f\u06d4\u0964\u0965"
    r"\u2010-\u205e\u3000-\u303f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
)
_ALONE = rf"(?!{WORD.pattern})\w"  # a character of a script without spaces
# The units that are linked: punctuation, such a character, or another word.
_UNIT = re.compile(rf"[{_MARKS}]+|{_ALONE}|(?:(?!{_ALONE})[^\s{_MARKS}])+")
_PUNCTUATION = re.compile(rf"[{_MARKS}]")
_NO_LINK = -2
_FREE, _TAKEN = -1, -2  # units that no child of an element owns; those outside the element
_LARGE = 1e5  # more than the gains of all words of a sentence


class Mark(NamedTuple):
    """A part of a sentence that is not in its text.

    opens, closes: the name of the element that a tag opens or closes. position: characters of the text before it.
    """

    text: str
    opens: str = ""
    closes: str = ""
    position: int = 0


@dataclass
class Element:
    """An element around the characters `start` to `stop` of a sentence; without any, a mark between characters.

    If one of its tags is in another sentence, that is empty here, and the element begins at -1 or stops behind the end.
    """

    start: int
    stop: int
    opening: str = ""
    closing: str = ""
    children: list["Element"] = field(default_factory=list)

    def holds(self, positions: Int[np.ndarray, " _"]) -> Bool[np.ndarray, " _"]:
        return (positions >= self.start) & (positions < self.stop)

    def descendants(self) -> Iterator["Element"]:
        for child in self.children:
            yield child
            yield from child.descendants()


def parse(text: str, marks: Sequence[Mark]) -> Element | None:
    """Returns an element without tags around the text and its marks.

    Returns None if their tags cannot be aligned: these are not well nested, or more than `MOST`.
    """
    if len(marks) > MOST:
        return None
    end = len(text) + 1
    root = Element(-1, end)
    stack = [("", root)]
    for markup, opens, closes, position in marks:
        name, element = stack[-1]
        if not closes:
            child = Element(position, end if opens else position, markup)
            element.children.append(child)
            stack += [(opens, child)] if opens else []
        elif closes == name:
            element.stop = position
            element.closing = markup
            stack.pop()
        elif element is root:  # it begins in an earlier sentence
            root.children = [Element(-1, position, closing=markup, children=root.children)]
        else:
            return None
    return root


def peel(root: Element) -> tuple[str, Element, str]:
    """Returns the marks before all text, an element with those within the text, and the marks after it."""
    before = after = ""
    children = list(root.children)
    end = root.stop - 1
    while children:
        first, last = children[0], children[-1]
        if last.start >= end:
            after = serialize(children.pop()) + after
        elif first.stop <= 0:
            before += serialize(children.pop(0))
        elif first.start <= 0 and first.stop >= end:
            before += first.opening
            after = first.closing + after
            children = first.children
        else:
            break
    return before, Element(root.start, root.stop, children=children), after


def serialize(element: Element) -> str:
    return element.opening + "".join(map(serialize, element.children)) + element.closing


def insert(model: Model, source: str, root: Element, target: str, escape: Callable[[str], str]) -> str:
    """Returns `target`, the translation of `source`, with the marks of `root`. `escape` is applied to its text."""
    cuts = {position for element in root.descendants() for position in (element.start, element.stop)}
    copies = _copied_words(source, target, cuts)
    sides = _Side(source, cuts), _Side(target, copies)
    weights = _link_weights(model, *sides)
    for unit, start in enumerate(sides[1].starts):
        if start in copies:
            weights[unit] = sides[0].starts == copies[start]
    return _Insertion(*sides, weights, escape).render(root, range(len(weights)), (0, len(target)))


def _copied_words(source: str, target: str, cuts: Collection[int]) -> dict[int, int]:
    """Returns where to divide the words of the target that are copies of source words with marks inside, such as H2O.

    The values are the positions in the source. Includes the beginnings of the words.
    """
    starts = collections.defaultdict(list)
    for word in _UNIT.finditer(target):
        starts[word[0]].append(word.start())
    copies: dict[int, int] = {}
    for word in _UNIT.finditer(source):
        inner = [cut for cut in cuts if word.start() < cut < word.end()]
        if inner and starts[word[0]]:
            offset = starts[word[0]].pop(0) - word.start()
            copies |= {cut + offset: cut for cut in (word.start(), *inner)}
    return copies


class _Side:
    """A text in units, with the positions of each and whether it is a word. `cuts` divide units.

    Outside the text are two more units, its begin and its end.
    """

    def __init__(self, text: str, cuts: Collection[int]) -> None:
        self.text = text
        parts = itertools.pairwise(sorted({0, *cuts, len(text)}))
        inner = [unit.span() for part in parts for unit in _UNIT.finditer(text, *part)]
        spans = [(-1, 0), *inner, (len(text), len(text) + 1)]
        self.starts, self.stops = np.array(spans).T
        self.is_word = np.array([bool(text[slice(*span)]) and not self.is_punctuation(span[0]) for span in spans])

    def is_punctuation(self, position: int) -> bool:
        return _PUNCTUATION.match(self.text, position) is not None

    def neighbour(self, unit: int, step: int) -> int | None:
        """Returns the next unit (step = 1) or the one before (-1), if no space is between."""
        left = min(unit, unit + step)
        return unit + step if self.stops[left] == self.starts[left + 1] else None

    def shares(self, pieces: Sequence[str]) -> Float[np.ndarray, "_ U"]:
        """Returns the part of each token in each unit. Tokens share a word in proportion to their pieces' lengths."""
        lengths = np.cumsum([0, *map(len, pieces)])
        ends = [*np.flatnonzero(word_starts(pieces)[1:]) + 1, len(pieces)]  # of words, in tokens
        stops = [word.end() for word in re.finditer(r"\S+", self.text)]
        if len(ends) != len(stops):  # other spaces after normalization
            ends = [len(pieces)]
            stops = [len(self.text)]
        edges = np.interp(lengths, lengths[[0, *ends]], [0, *stops])[:, None]
        common = np.minimum(edges[1:], self.stops) - np.maximum(edges[:-1], self.starts)
        common = common.clip(0)
        return common / np.maximum(common.sum(axis=1, keepdims=True), 1e-6)


def _link_weights(model: Model, source: _Side, target: _Side) -> Float[np.ndarray, "T S"]:
    """Returns the weight of the link of each target unit to each source unit, which is 0 for punctuation."""
    are_words = target.is_word[:, None] * source.is_word
    try:
        attention = model.attention(source.text, target.text)
    except UserError:  # a model of this kind has none, or a text is too long for it
        # Relative positions among the words of each side.
        places = ((np.cumsum(side.is_word) - 0.5) / max(side.is_word.sum(), 1) for side in (target, source))
        return are_words * (1 - np.abs(np.subtract.outer(*places)))
    heads = choose_heads(model.config.model, model.config.training.guided_heads or "average")
    source_shares = source.shares(attention.source_pieces[attention.tag_length : -1])
    target_shares = target.shares(attention.target_output_pieces[:-1])
    weights = are_words * (target_shares.T @ mean_weights(attention, heads) @ source_shares)
    # The geometric mean of a link's probabilities in both directions, but for a factor of each row.
    return weights / np.sqrt(np.maximum(weights.sum(axis=0), 1e-9))


def _links(source: _Side, target: _Side, weights: Float[np.ndarray, "T S"]) -> Int[np.ndarray, " T"]:
    """Returns the position of the source unit that each unit of the target is linked to, or `_NO_LINK`.

    The begin and the end are linked to those of the source, and punctuation as the unit that it touches.
    """
    links = np.where(weights.any(axis=1), weights.argmax(axis=1), _NO_LINK)
    links[[0, -1]] = 0, len(source.starts) - 1
    for step, unit in itertools.product((-1, 1), range(1, len(links) - 1)):
        touched = target.neighbour(unit, step)
        if target.is_word[unit] or touched is None or links[touched] == _NO_LINK:
            continue
        mark = source.neighbour(links[touched], -step)
        if mark is not None and source.is_punctuation(source.starts[mark]):
            links[unit] = mark
    return np.where(links == _NO_LINK, _NO_LINK, source.starts[links])


class _Insertion:
    """Inserts marks into a target. sizes: the weight of each of its units in the choice of an element's place."""

    def __init__(self, source: _Side, target: _Side, weights: np.ndarray, escape: Callable[[str], str]) -> None:
        self.source, self.target, self.weights, self.escape = source, target, weights, escape
        self.links = _links(source, target, weights)
        self.sizes = np.where(target.is_word, 1, 1e-3)
        self.sizes[[0, -1]] = _LARGE

    def render(self, parent: Element, units: range, characters: Span) -> str:
        """Returns these units and characters of the target with the marks in an element."""
        rendered: list[str] = []
        at, end = characters
        placed = zip(self._places(parent, units), parent.children, strict=True)
        for place, child in sorted(placed, key=lambda item: (item[0].start, item[0].stop)):
            begin, stop = (max(at, position) for position in self._characters(child, place, units, characters))
            rendered.append(self.escape(self.target.text[at:begin]))
            rendered += [child.opening, self.render(child, place, (begin, stop)), child.closing]
            at = stop
        return "".join([*rendered, self.escape(self.target.text[at:end])])

    def _characters(self, child: Element, place: range, units: range, characters: Span) -> Span:
        """Returns the positions in the target of a child of an element at these units and characters."""
        if place:
            return self.target.starts[place.start], self.target.stops[place.stop - 1]
        begin = self.target.stops[place.start - 1] if place.start > units.start else characters[0]
        # Between two words, the space is on the same side as in the source.
        follows_space = self.source.text[child.start - 1 : child.start].isspace()
        begin += follows_space and self.target.text[begin : characters[1]][:1].isspace()
        return begin, begin

    def _places(self, parent: Element, units: range) -> list[range]:
        """Returns the units that each child of an element at these units surrounds. No two children share one."""
        owners = self._owners(parent.children, units)
        places: list[range] = []
        for number in range(len(parent.children)):
            gains = np.select([owners == number, owners == _FREE], [self.sizes, -self.sizes], -_LARGE)
            places.append(_best(gains))
        return [
            place or self._between(parent, child, units, places[:number], places[number + 1 :])
            for number, (child, place) in enumerate(zip(parent.children, places, strict=True))
        ]

    def _owners(self, children: Sequence[Element], units: range) -> Int[np.ndarray, " T"]:
        """Returns the number of the child that has the source of each unit, or `_FREE`; outside `units`, `_TAKEN`.

        A child that no unit is linked to has the unit with the largest weight for it, unless that is not free.
        """
        owners = np.full(len(self.links), _TAKEN)
        owners[units.start : units.stop] = _FREE
        for number, child in enumerate(children):
            owners[(owners == _FREE) & child.holds(self.links)] = number
        for number, child in enumerate(children):
            weights = self.weights[:, child.holds(self.source.starts)].sum(axis=1)
            if number not in owners and weights.any() and owners[weights.argmax()] == _FREE:
                owners[weights.argmax()] = number
        return owners

    def _between(
        self, parent: Element, child: Element, units: range, earlier: Sequence[range], later: Sequence[range]
    ) -> range:
        """Returns the place of a child without units.

        It is before the punctuation that follows the child, or else after the word before it, and outside of the
        places of earlier and later children.
        """
        unit_of = dict(zip(self.links[units.start : units.stop].tolist(), units, strict=True))
        following = self.source.starts[self.source.starts >= child.stop][0]
        before = [link for link in unit_of if parent.start <= link < child.start]
        at = units.start
        if self.source.is_punctuation(following) and following in unit_of:
            at = unit_of[following]
        elif before:
            at = unit_of[max(before)] + 1
            # Punctuation after that word comes first.
            follows = at in units and self.target.neighbour(at, -1) is not None
            at += follows and self.target.is_punctuation(self.target.starts[at])
        for place in earlier:
            at = place.stop if at in place[1:] else at
        for place in later:
            at = place.start if at in place[1:] else at
        return range(at, at)


def _best(gains: Float[np.ndarray, " U"]) -> range:
    """Returns the consecutive units with the largest sum of gains that is above 0; none if there are none."""
    sums = np.cumsum([0, *gains])
    lowest = np.minimum.accumulate(sums)
    stop = int(np.argmax(sums - lowest))
    start = int(np.flatnonzero(sums[: stop + 1] == lowest[stop])[-1])
    return range(start, stop)
