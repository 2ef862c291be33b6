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
from jaxtyping import Float, Int

from scripts.alignment.links import choose_heads, mean_weights
from transformer.api import Model
from transformer.data.corpus.annotations import word_starts
from transformer.decoding.phrases import WORD
from transformer.errors import UserError

EDGE = "\0"  # begins and ends a sentence
MOST = 100  # marks of a sentence that are aligned
_MARKS = (  # in classes of characters: punctuation and symbols
    r"!-/:-@\[-`{-~\xa1-\xa9\xab-\xb4\xb6-\xb9\xbb-\xbf\u060c\u061b\u061f\u06d4\u0964\u0965"
    r"\u2010-\u205e\u3000-\u303f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
)
_ALONE = rf"(?!{WORD.pattern})\w"  # a character of a script without spaces
# The units that are linked: punctuation, such a character, or another word.
_UNIT = re.compile(rf"{EDGE}|[{_MARKS}]+|{_ALONE}|(?:(?!{_ALONE})[^\s{EDGE}{_MARKS}])+")
_PUNCTUATION = re.compile(rf"[{_MARKS}]")
_PUNCTUATION_AFTER = re.compile(rf"[{_MARKS}]*")
_SPACE = re.compile(r"\s*")
NO_LINK = -1
_FREE, _TAKEN = -1, -2  # characters that no child of an element owns; those outside the element
_LARGE = 1e5  # more than the sizes of all characters of a sentence


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
    """An element around the characters `start` to `stop` of a sentence between `EDGE`s; a mark has none.

    If one of its tags is in another sentence, that is empty here, and the element contains the edge.
    """

    start: int
    stop: int
    opening: str = ""
    closing: str = ""
    children: list["Element"] = field(default_factory=list)

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
    end = len(text) + 2
    root = Element(0, end)
    stack = [("", root)]
    for markup, opens, closes, position in marks:
        position += 1
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
            root.children = [Element(0, position, closing=markup, children=root.children)]
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
        elif first.stop <= 1:
            before += serialize(children.pop(0))
        elif first.start <= 1 and first.stop >= end:
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
    insertion = _Insertion(model, _Side(source), _Side(target), escape)
    insertion.link_copies({position for child in root.descendants() for position in (child.start, child.stop)})
    return insertion.render(root, range(len(target) + 2))[1:-1]


class _Side:
    """A text between two `EDGE`s, in units: the positions of each, and whether it is a word.

    after, before: whether each unit but the first is punctuation without a space before it; each but the last, after it.
    """

    def __init__(self, text: str) -> None:
        self.text = EDGE + text + EDGE
        self.units = list(_UNIT.finditer(self.text))
        self.starts, self.stops = np.array([unit.span() for unit in self.units]).T
        self.is_word = np.array([not _PUNCTUATION.match(unit[0]) for unit in self.units])
        touches = self.stops[:-1] == self.starts[1:]
        self.after = touches & ~self.is_word[1:]
        self.before = touches & ~self.is_word[:-1]

    def shares(self, pieces: Sequence[str]) -> Float[np.ndarray, "_ U"]:
        """Returns the part of each token in each unit. Tokens share a word in proportion to their pieces' lengths."""
        lengths = np.cumsum([0, *map(len, pieces)])
        ends = [*np.flatnonzero(word_starts(pieces)[1:]) + 1, len(pieces)]  # of words, in tokens
        stops = [word.end() for word in re.finditer(rf"[^\s{EDGE}]+", self.text)]
        if len(ends) != len(stops):  # other spaces after normalization
            ends = [len(pieces)]
            stops = [len(self.text) - 1]
        edges = np.interp(lengths, lengths[[0, *ends]], [1, *stops])[:, None]
        common = (np.minimum(edges[1:], self.stops) - np.maximum(edges[:-1], self.starts)).clip(0)
        return common / np.maximum(common.sum(axis=1, keepdims=True), 1e-6)


def _word_weights(model: Model, source: _Side, target: _Side) -> Float[np.ndarray, "T S"]:
    """Returns the weight of the link of each target unit to each source unit, which is 0 for punctuation."""
    are_words = np.outer(target.is_word, source.is_word)
    try:
        attention = model.attention(source.text[1:-1], target.text[1:-1])
    except UserError:  # a model of this kind has none, or a text is too long for it
        # Relative positions among the words of each side.
        places = ((np.cumsum(side.is_word) - 1) / (side.is_word.sum() - 1) for side in (target, source))
        return are_words * (1 - np.abs(np.subtract.outer(*places)))
    heads = choose_heads(model.config.model, model.config.training.guided_heads or "average")
    source_shares = source.shares(attention.source_pieces[attention.tag_length : -1])
    target_shares = target.shares(attention.target_output_pieces[:-1])
    weights = are_words * (target_shares.T @ mean_weights(attention, heads) @ source_shares)
    # The geometric mean of a link's probabilities in both directions, but for a factor of each row.
    return weights / np.sqrt(np.maximum(weights.sum(axis=0), 1e-9))


class _Insertion:
    """Inserts marks into a target.

    Attributes, with a number for each character of the target:
      links: the position in the source that it is linked to, or `NO_LINK`. Words are linked by attention, the edges to
        those of the source, and punctuation as the word or edge that it touches.
      sizes: its weight in the choice of an element's place.
    """

    def __init__(self, model: Model, source: _Side, target: _Side, escape: Callable[[str], str]) -> None:
        self.source, self.target, self.escape = source, target, escape
        self.weights = np.pad(_word_weights(model, source, target)[1:-1, 1:-1], 1)
        self.weights[[0, -1], [0, -1]] = 1
        linked = np.eye(len(source.units))[self.weights.argmax(axis=1)] * self.weights.any(axis=1, keepdims=True)
        linked[1:, 1:] += linked[:-1, :-1] * np.outer(target.after, source.after)
        linked[:-1, :-1] += linked[1:, 1:] * np.outer(target.before, source.before) * 2
        self.links = np.full(len(target.text), NO_LINK)
        self.sizes = np.full(len(target.text), 1e-4)
        for unit, is_word, row in zip(target.units, target.is_word, linked, strict=True):
            span = slice(*unit.span())
            self.links[span] = source.starts[row.argmax()] if row.any() else NO_LINK
            self.sizes[span] = 1 if is_word else 1e-4
        self.sizes[[0, -1]] = _LARGE

    def link_copies(self, cuts: Collection[int]) -> None:
        """Links the characters of words with marks inside, such as H2O, to those of their copies in the target."""
        copies = collections.defaultdict(list)
        for unit in self.target.units:
            copies[unit[0]].append(slice(*unit.span()))
        for unit in self.source.units:
            if copies[unit[0]] and any(unit.start() < cut < unit.end() for cut in cuts):
                self.links[copies[unit[0]].pop(0)] = range(*unit.span())

    def render(self, parent: Element, inside: range) -> str:
        """Returns the characters of the target inside of an element, with the marks in it."""
        rendered: list[str] = []
        at = inside.start
        placed = zip(self._places(parent, inside), parent.children, strict=True)
        for place, child in sorted(placed, key=lambda item: (item[0].start, item[0].stop)):
            rendered.append(self.escape(self.target.text[at : place.start]))
            rendered += [child.opening, self.render(child, place), child.closing]
            at = place.stop
        return "".join([*rendered, self.escape(self.target.text[at : inside.stop])])

    def _places(self, parent: Element, inside: range) -> list[range]:
        """Returns the characters that each child of an element with these surrounds. No two children share one."""
        owners = self._owners(parent.children, inside)
        places: list[range] = []
        for number in range(len(parent.children)):
            gains = np.select([owners == number, owners == _FREE], [self.sizes, -self.sizes], -_LARGE)
            places.append(_best(gains))
        for number, child in enumerate(parent.children):
            if not places[number]:
                at = self._gap(parent, child, inside)
                for other, place in enumerate(places):
                    if at in place[1:]:
                        at = place.stop if other < number else place.start
                places[number] = range(at, at)
        return places

    def _owners(self, children: Sequence[Element], inside: range) -> Int[np.ndarray, " T"]:
        """Returns the number of the child that has the source of each character, or `_FREE`; outside, `_TAKEN`.

        A child without any has the word with the largest weight for it, if that is free.
        """
        owners = np.full(len(self.links), _TAKEN)
        owners[inside.start : inside.stop] = _FREE
        for number, child in enumerate(children):
            owners[(owners == _FREE) & (self.links >= child.start) & (self.links < child.stop)] = number
        for number, child in enumerate(children):
            columns = (self.source.stops > child.start) & (self.source.starts < child.stop)
            weights = self.weights[:, columns].sum(axis=1)
            word = slice(*self.target.units[weights.argmax()].span())
            if number not in owners and weights.any() and (owners[word] == _FREE).all():
                owners[word] = number
        return owners

    def _gap(self, parent: Element, child: Element, inside: range) -> int:
        """Returns the position of a child without characters.

        It is before the punctuation that follows in the source, or else after the word before it.
        """
        source, links = self.source.text, self.links[inside.start : inside.stop]
        following = _SPACE.match(source, child.stop).end()
        if _PUNCTUATION.match(source, following) and following in links:
            return inside.start + int(np.argmax(links == following))
        before = links[(links >= parent.start) & (links < child.start)]
        if not len(before):
            return inside.start
        at = inside.start + int(np.flatnonzero(links == before.max())[-1]) + 1
        at = _PUNCTUATION_AFTER.match(self.target.text, at, inside.stop).end()
        # Between two words, the space is on the same side as in the source.
        return at + (source[child.start - 1].isspace() and self.target.text[at : inside.stop][:1].isspace())


def _best(gains: Float[np.ndarray, " T"]) -> range:
    """Returns the consecutive characters with the largest sum of gains that is above 0; none if there are none."""
    sums = np.cumsum([0, *gains])
    lowest = np.minimum.accumulate(sums)
    stop = int(np.argmax(sums - lowest))
    start = int(np.flatnonzero(sums[: stop + 1] == lowest[stop])[-1])
    return range(start, stop)
