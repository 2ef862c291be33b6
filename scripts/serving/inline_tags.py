"""Marks within a sentence: inline tags of HTML, and emoji that the vocabulary lacks.

The sentence is translated without its marks. They return around, or after, the words that cross-attention links to the
words at their places in the source. A model without cross-attention, or an ensemble, links words in their order.
"""

import itertools
import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from scripts.alignment.links import choose_heads, mean_weights
from transformer.api import Model
from transformer.data.corpus.annotations import number_words, word_starts
from transformer.decoding.phrases import WORD
from transformer.errors import UserError

Span = tuple[int, int]
DEEPEST = 50  # elements within each other that are aligned
_MARKS = (  # in classes of characters: punctuation and symbols
    r"!-/:-@\[-`{-~\xa1-\xa9\xab-\xb4\xb6-\xb9\xbb-\xbf\u060c\u061b\u061f\u06d4\u0964\u0965"
    r"\u2010-\u205e\u3000-\u303f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
)
_ALONE = rf"(?!{WORD.pattern})\w"  # a character of a script without spaces
# The units that are linked: punctuation, such a character, or another word.
_UNIT = re.compile(rf"[{_MARKS}]+|{_ALONE}|(?:(?!{_ALONE})[^\s{_MARKS}])+")
_PUNCTUATION = re.compile(rf"[{_MARKS}]")


class Mark(NamedTuple):
    """A part of a sentence that is not in its text.

    position: characters of the text before it. opens, closes: the name of the element that a tag opens or closes.
    """

    position: int
    text: str
    opens: str = ""
    closes: str = ""

    @property
    def is_alone(self) -> bool:
        return not self.opens and not self.closes


@dataclass
class Element:
    """An element around the characters `start` to `stop` of a sentence; without any, a mark between characters.

    The tag that is in another sentence is empty.
    """

    start: int
    stop: int
    opening: str = ""
    closing: str = ""
    name: str = ""
    children: list["Element"] = field(default_factory=list)

    @property
    def ends_later(self) -> bool:
        return not self.closing and self.start < self.stop

    @property
    def is_cut(self) -> bool:
        """True if one of its tags is in another sentence."""
        return not self.opening or self.ends_later


def parse(text: str, marks: Sequence[Mark]) -> Element | None:
    """Returns an element without tags around the text and its marks; None if their tags cannot be aligned.

    These are not well nested, or deeper than `DEEPEST`.
    """
    open_elements = [Element(0, len(text))]
    cut = 0  # elements that begin in an earlier sentence
    for position, markup, opens, closes in marks:
        root, element = open_elements[0], open_elements[-1]
        if opens:
            open_elements.append(Element(position, len(text), markup, name=opens))
        elif not closes:
            element.children.append(Element(position, position, markup))
        elif element is root:
            root.children = [Element(0, position, closing=markup, children=root.children)]
            cut += 1
        elif element.name == closes:
            element.stop, element.closing = position, markup
            open_elements.pop()
            open_elements[-1].children.append(element)
        else:
            return None
        if len(open_elements) + cut > DEEPEST:
            return None
    for parent, element in reversed(list(itertools.pairwise(open_elements))):
        parent.children.append(element)
    return open_elements[0]


def peel(root: Element) -> tuple[str, Element, str]:
    """Returns the marks before all text, an element with those within the text, and the marks after it."""
    before, children, after = "", list(root.children), ""
    while children:
        first, last = children[0], children[-1]
        if last.start == root.stop:
            after = serialize(children.pop()) + after
        elif first.stop == root.start:
            before += serialize(children.pop(0))
        elif (first.start, first.stop) == (root.start, root.stop):
            before, children, after = before + first.opening, first.children, first.closing + after
        else:
            break
    return before, Element(root.start, root.stop, children=children), after


def serialize(element: Element) -> str:
    return element.opening + "".join(map(serialize, element.children)) + element.closing


def insert(model: Model, source: str, root: Element, target: str, escape: Callable[[str], str]) -> str:
    """Returns `target`, the translation of `source`, with the marks of `root`. `escape` is applied to its text."""
    cuts = {position for element in _descendants(root) for position in (element.start, element.stop)}
    copies = _copied_words(source, target, cuts)
    sides = _Side(source, cuts), _Side(target, copies)
    weights = _link_weights(model, *sides)
    for unit, start in enumerate(sides[1].starts):
        if start in copies:
            weights[unit] = sides[0].starts == copies[start]
    return _Insertion(*sides, weights, escape).render(root, range(len(weights)), (0, len(target)))


def _descendants(element: Element) -> list[Element]:
    return [found for child in element.children for found in (child, *_descendants(child))]


def _copied_words(source: str, target: str, cuts: Collection[int]) -> dict[int, int]:
    """Returns where to divide the words of the target that are copies of source words with marks inside, such as H2O.

    The values are the positions in the source. Includes the beginnings of the words.
    """
    copies: dict[int, int] = {}
    for word in _UNIT.finditer(source):
        inner = [cut for cut in cuts if word.start() < cut < word.end()]
        alike = (unit.start() for unit in _UNIT.finditer(target) if inner and unit[0] == word[0])
        start = next((start for start in alike if start not in copies), None)
        if start is not None:
            copies |= {start + cut - word.start(): cut for cut in (word.start(), *inner)}
    return copies


class _Side:
    """A text in units, with the positions of each and whether it is a word. `cuts` divide units."""

    def __init__(self, text: str, cuts: Collection[int]) -> None:
        self.text = text
        spans: list[Span] = []
        for unit in _UNIT.finditer(text):
            inner = sorted(cut for cut in cuts if unit.start() < cut < unit.end())
            spans += itertools.pairwise([unit.start(), *inner, unit.end()])
        self.starts, self.stops = np.array(spans, int).reshape(-1, 2).T
        self.is_word = np.array([not _PUNCTUATION.match(text, start) for start in self.starts], bool)

    def shares(self, pieces: Sequence[str]) -> Float[np.ndarray, "_ U"]:
        """Returns the part of each token in each unit. Tokens share a word in proportion to their pieces' lengths."""
        words = [word.span() for word in re.finditer(r"\S+", self.text)]
        numbers = number_words(word_starts(pieces))
        if len(words) != numbers.max(initial=-1) + 1:  # other spaces after normalization
            words = [(0, len(self.text))]
            numbers = np.zeros_like(numbers)
        lengths = np.array([len(piece.lstrip("\u2581")) for piece in pieces])
        edges = np.zeros((len(pieces), 2))
        for number, (start, stop) in enumerate(words):
            of_word = numbers == number
            ends = np.cumsum(lengths[of_word])
            fractions = np.stack([ends - lengths[of_word], ends], axis=1) / max(lengths[of_word].sum(), 1)
            edges[of_word] = start + (stop - start) * fractions
        begins, ends = edges.T[:, :, None]
        common = np.minimum(ends, self.stops) - np.maximum(begins, self.starts)
        return common.clip(0) / np.maximum(ends - begins, 1e-6)


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


class _Insertion:
    """Inserts marks into a target.

    links: the position of the source word that each unit of the target is linked to; -1 for punctuation.
    is_after_word, is_before_word: whether each unit is punctuation without a space before it, or after it.
    """

    def __init__(self, source: _Side, target: _Side, weights: np.ndarray, escape: Callable[[str], str]) -> None:
        self.source, self.target, self.weights, self.escape = source, target, weights, escape
        self.links = np.where(target.is_word, source.starts[weights.argmax(axis=1)], -1)
        touches = target.stops[:-1] == target.starts[1:]
        self.is_after_word = ~target.is_word & np.append(False, touches)
        self.is_before_word = ~target.is_word & np.append(touches, False)

    def render(self, parent: Element, units: range, characters: Span) -> str:
        """Returns these units and characters of the target with the marks in an element."""
        rendered: list[str] = []
        at = characters[0]
        placed = zip(self._places(parent, units), parent.children, strict=True)
        for place, child in sorted(placed, key=lambda item: (item[0].start, item[0].stop)):
            begin, end = (max(at, position) for position in self._characters(child, place, units, characters))
            rendered.append(self.escape(self.target.text[at:begin]))
            rendered += [child.opening, self.render(child, place, (begin, end)), child.closing]
            at = end
        return "".join([*rendered, self.escape(self.target.text[at : characters[1]])])

    def _characters(self, child: Element, place: range, units: range, characters: Span) -> Span:
        """Returns the positions in the target of a child of an element at these units and characters."""
        if place == units:
            return characters
        if place:
            return self.target.starts[place.start], self.target.stops[place.stop - 1]
        begin = self.target.stops[place.start - 1] if place.start > units.start else characters[0]
        # Between two words, the space is on the same side as in the source.
        follows_space = self.source.text[child.start - 1 : child.start].isspace()
        if follows_space and begin < characters[1] and self.target.text[begin].isspace():
            begin += 1
        return begin, begin

    def _places(self, parent: Element, units: range) -> list[range]:
        """Returns the units that each child of an element at these units surrounds. No two children share one."""
        children, starts = parent.children, self.source.starts
        inside = starts[(starts >= parent.start) & (starts < parent.stop)]
        owners = self._owners(children, units)
        places: list[range] = []
        for number, child in enumerate(children):
            is_whole = all(child.start <= start < child.stop for start in inside)
            gains = [self._gain(unit, number, owners.get(unit)) for unit in units]
            places.append(units if is_whole else _best(gains, units, child))
        for number, child in enumerate(children):
            if not places[number] and not child.is_cut:
                places[number] = self._between(parent, number, units, places)
            places[number] = self._with_punctuation(child, units, places[number], places)
        return places

    def _gain(self, unit: int, number: int, owner: int | None) -> float:
        """Returns the gain if a child surrounds a unit, which is impossible for the unit of another child."""
        if owner is None:
            return -1.0 if self.target.is_word[unit] else -1e-3
        return 1.0 if owner == number else -math.inf

    def _owners(self, children: Sequence[Element], units: range) -> dict[int, int]:
        """Returns the number of the child that has the source of each unit; if none has, the unit is left out.

        A child that no unit is linked to has the unit with the largest weight for it, unless another child has that.
        """
        links = self.links[units.start : units.stop]
        owners = {}
        for number, child in enumerate(children):
            linked = np.flatnonzero((links >= child.start) & (links < child.stop)) + units.start
            owners |= dict.fromkeys(linked.tolist(), number)
        owning = set(owners.values())
        for number, child in enumerate(children):
            if number in owning or child.start == child.stop:
                continue
            columns = (self.source.starts >= child.start) & (self.source.starts < child.stop)
            weights = self.weights[:, columns].sum(axis=1)
            likeliest = int(weights.argmax()) if weights.any() else -1
            if likeliest in units:
                owners.setdefault(likeliest, number)
        return owners

    def _between(self, parent: Element, number: int, units: range, places: Sequence[range]) -> range:
        """Returns the place of a child without units: after those of the word before it, and outside other children."""
        child, starts = parent.children[number], self.source.starts
        is_before = (starts < child.start) & (starts >= parent.start) & self.source.is_word
        is_after = (starts >= child.start) & (starts < parent.stop)
        at = units.start
        linked = np.intersect1d(starts[is_before], self.links[units.start : units.stop])
        if len(linked):
            gains = np.where(self.links[units.start : units.stop] == linked[-1], 1.0, -1.0)
            at = _best(gains, units, child).stop
        # Punctuation after that word comes first, unless it follows the child in the source.
        if not _PUNCTUATION.match(self.source.text, child.stop):
            while at > units.start and at in units and self.is_after_word[at]:
                at += 1
        if not (is_after & self.source.is_word).any():
            at = units.stop
            while is_after.any() and at > units.start and not self.target.is_word[at - 1]:
                at -= 1
        for other, (place, sibling) in enumerate(zip(places, parent.children, strict=True)):
            is_inside = (place.start < at or not sibling.opening) and (at < place.stop or not sibling.closing)
            if place and is_inside:
                at = place.stop if other < number else place.start
        return range(at, at)

    def _with_punctuation(self, child: Element, units: range, place: range, places: Sequence[range]) -> range:
        """Returns the place with the punctuation beside it, if the child has punctuation at that end."""
        text = self.source.text[child.start : child.stop].strip()
        begin, end = place.start, place.stop
        if not text:
            return place
        taken = set(itertools.chain(*places))
        if _PUNCTUATION.match(text[-1]) and end in units and self.is_after_word[end] and end not in taken:
            end += 1
        if (
            _PUNCTUATION.match(text)
            and begin - 1 in units
            and self.is_before_word[begin - 1]
            and begin - 1 not in taken
        ):
            begin -= 1
        return range(begin, end)


def _best(gains: Sequence[float], units: range, child: Element) -> range:
    """Returns the consecutive units with the largest sum of gains that is above 0; none if there are none.

    The units of an element that is cut begin with the first one, or end with the last one.
    """
    if child.ends_later:
        gains = gains[::-1]
    is_cut = child.is_cut
    most = total = 0.0
    begin = 0
    best = range(0)
    for end, gain in enumerate(gains, start=1):
        if total <= 0 and not is_cut:
            begin = end - 1
            total = 0.0
        total += gain
        if total > most:
            most = total
            best = range(begin, end)
    if child.ends_later:
        return range(units.stop - best.stop, units.stop)
    return range(units.start + best.start, units.start + best.stop)
