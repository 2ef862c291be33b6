"""Insertion of marks into the translation of a sentence.

They are around or after the words that cross-attention links to the words around or before the
marks in the source. For an ensemble or a model without cross-attention, words are linked in their
order.
"""

import contextlib
import re
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int

from scripts.alignment.links import choose_heads, mean_weights
from scripts.serving.inline_tags import EDGE, Element, makes_one_word
from transformer.api import Model
from transformer.data.corpus.annotations import word_starts
from transformer.decoding.control.phrases import WORD
from transformer.support.errors import UserError

Escape = Callable[[str], str]
_MARKS = (  # in classes of characters: punctuation and symbols
    r"!-/:-@\[-`{-~\xa1-\xa9\xab-\xb4\xb6-\xb9\xbb-\xbf\u060c\u061b\u061f\u06d4\u0964\u0965"
    r"\u2010-\u205e\u3000-\u303f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
)
_UNSPACED = rf"(?!{WORD.pattern})\w"  # a character of a script without spaces
# The units that are linked: an edge, punctuation, such a character, or another word.
_UNIT = re.compile(rf"{EDGE}|[{_MARKS}]+|{_UNSPACED}|(?:(?!{_UNSPACED})[^\s{EDGE}{_MARKS}])+")
_PUNCTUATION = re.compile(rf"[{_MARKS}]")
_AFTER_WORD = re.compile(rf"[{_MARKS}]*"), re.compile(rf"[{_MARKS}]*\s?")
NO_LINK = -1
FREE = -1  # the owner of characters that no element owns
OUTSIDE = -2  # the owner of characters outside of the parent
LARGE = 1e4  # more than the weights of all words of a sentence
LEAST = 1e-3  # the smallest weight of a link, such as a link of punctuation


def insert(
    model: Model,
    source: str,
    elements: Sequence[Element],
    target: str,
    escape: Escape,
) -> str:
    """Returns `target`, the translation of `source`, escaped and with the elements of `source`."""
    if not elements:
        return escape(target)
    insertion = _Insertion(model, _Side(source), _Side(target), escape)
    return insertion.render(elements, range(len(target) + 2))[1:-1]


class _Side:
    """A text between two `EDGE`s in units (U).

    Attributes:
      units, starts, stops: (U,), the text and the span of each unit.
      is_word: (U,), False for punctuation.
      after: (U - 1,), True if unit i + 1 is punctuation that touches unit i.
      before: (U - 1,), True if unit i is punctuation that touches unit i + 1.
    """

    def __init__(self, text: str) -> None:
        self.text = EDGE + text + EDGE

        # Both edges are units, so there is always a first and a last one.
        units = list(_UNIT.finditer(self.text))
        self.units = np.array([unit[0] for unit in units])
        self.starts, self.stops = np.array([unit.span() for unit in units]).T
        self.is_word = np.array([not _PUNCTUATION.match(unit[0]) for unit in units])
        touches = self.stops[:-1] == self.starts[1:]
        self.after = touches & ~self.is_word[1:]
        self.before = touches & ~self.is_word[:-1]

    def shares(self, pieces: Sequence[str]) -> Float[np.ndarray, "_ U"]:
        """Returns the part of each token that is in each unit.

        Tokens share a word in proportion to the lengths of their pieces.
        """
        # Positions in the joined pieces are interpolated to positions in the text, word by word.
        lengths = np.cumsum([0, *map(len, pieces)])
        word_ends = [*np.flatnonzero(word_starts(pieces)[1:]) + 1, len(pieces)]  # in tokens
        word_stops = [word.end() for word in re.finditer(rf"[^\s{EDGE}]+", self.text)]
        if len(word_ends) != len(word_stops):  # normalization has changed the spaces
            word_ends = [len(pieces)]
            word_stops = [len(self.text) - 1]
        edges = np.interp(lengths, lengths[[0, *word_ends]], [1, *word_stops])[:, None]

        # The overlap of each token with each unit.
        common = np.minimum(edges[1:], self.stops) - np.maximum(edges[:-1], self.starts)
        common = common.clip(0)  # (T, U), in characters
        return common / np.maximum(common.sum(axis=1, keepdims=True), 1e-6)


def _word_weights(model: Model, source: _Side, target: _Side) -> Float[np.ndarray, "T S"]:
    """Returns the weight of each target unit's link to each source unit: 0 for punctuation."""
    # Without other evidence, words are linked in their order.
    places = (np.cumsum(side.is_word) / side.is_word.sum() for side in (target, source))
    weights = 1e-4 * (1 - np.abs(np.subtract.outer(*places)))  # (T, S)

    # Names and numbers are linked to their copies.
    weights += (target.units[:, None] == source.units) & ~np.char.islower(source.units)

    # Other kinds of models have no attention, and a text may be too long.
    with contextlib.suppress(UserError):
        attention = model.attention(source.text[1:-1], target.text[1:-1])
        heads = choose_heads(model.config.model, model.config.training.guided_heads or "average")
        source_shares = source.shares(attention.source_pieces[attention.tag_length : -1])
        target_shares = target.shares(attention.target_output_pieces[:-1])
        linked = target_shares.T @ mean_weights(attention, heads) @ source_shares

        # The geometric mean of the probabilities in both directions, except for a factor of each
        # row.
        weights += linked / np.sqrt(np.maximum(linked[target.is_word].sum(axis=0), 1e-9))
    return weights * np.outer(target.is_word, source.is_word)


class _Insertion:
    """The insertion of marks into a target.

    Attributes:
      links: the position in the source that each character of the target is linked to, or
        `NO_LINK`. Edges are linked to edges. Punctuation is linked like the word or edge that it
        touches.
      sizes: the share of each character in the weight of its link.
    """

    def __init__(self, model: Model, source: _Side, target: _Side, escape: Escape) -> None:
        self.source = source
        self.target = target
        self.escape = escape

        # Edges are linked only to edges.
        self.weights = np.pad(_word_weights(model, source, target)[1:-1, 1:-1], 1)
        self.weights[[0, -1], [0, -1]] = 1

        # Each target unit with a weight is linked to the source unit with the largest weight.
        linked = np.eye(len(source.units))[self.weights.argmax(axis=1)]
        linked *= self.weights.any(axis=1, keepdims=True)

        # Punctuation follows the links of the unit before it, and first of the unit after it.
        linked[1:, 1:] += linked[:-1, :-1] * np.outer(target.after, source.after)
        linked[:-1, :-1] += linked[1:, 1:] * np.outer(target.before, source.before) * 2

        # From units to characters. Those of a copy are linked one to one, so that tags within a
        # word, as in H<sub>2</sub>O, keep their place.
        self.links = np.full(len(target.text), NO_LINK)
        self.sizes = np.zeros(len(target.text))
        for unit, row in enumerate(linked):
            if not row.any():
                continue
            link = row.argmax()
            span = slice(target.starts[unit], target.stops[unit])
            length = len(target.units[unit])
            is_copy = target.units[unit] == source.units[link]
            self.links[span] = source.starts[link] + is_copy * np.arange(length)
            self.sizes[span] = max(self.weights[unit, link], LEAST) / length
        self.sizes[[0, -1]] = LARGE  # an element that includes an edge always surrounds it

    def render(self, elements: Sequence[Element], inside: range) -> str:
        """Returns these characters of the target with the elements inside."""
        # Elements of the same place keep their order, because the sort is stable.
        rendered = []
        position = inside.start
        placed = zip(self._places(elements, inside), elements, strict=True)
        for place, element in sorted(placed, key=lambda pair: (pair[0].start, pair[0].stop)):
            rendered += [
                self.escape(self.target.text[position : place.start]),
                element.opening if place else self._apart(element, place.start),
                self.render(element.children, place),
                element.closing,
            ]
            position = place.stop
        return "".join([*rendered, self.escape(self.target.text[position : inside.stop])])

    def _apart(self, element: Element, position: int) -> str:
        """Returns the opening of an element without characters at this position of the target.

        If it would make one word with the text beside it, as a URL would, a space is between them.
        """
        opening = element.opening
        before, after = self.target.text[position - 1 : position + 1]
        space_before = " " * makes_one_word(before, opening)
        return space_before + opening + " " * makes_one_word(opening, after)

    def _places(self, elements: Sequence[Element], inside: range) -> list[range]:
        """Returns the characters that each element surrounds. No two elements share one."""
        # The characters of an element may be apart: it surrounds the part with the largest weight.
        owners = self._owners(elements, inside)
        places = []
        for number in range(len(elements)):
            gains = np.select([owners == number, owners == FREE], [self.sizes, -self.sizes], -LARGE)
            places.append(_best_span(gains))

        # Elements without characters are between other elements, not inside them.
        for number, element in enumerate(elements):
            if places[number]:
                continue
            position = self._gap(element, inside)
            for other, place in enumerate(places):
                if position in place[1:]:
                    position = place.stop if other < number else place.start

                    # Punctuation after the last word of an earlier element comes first.
                    text = self.target.text if other < number else ""
                    while owners[position] == FREE and _PUNCTUATION.match(text, position):
                        position += 1
            places[number] = range(position, position)
        return places

    def _owners(self, elements: Sequence[Element], inside: range) -> Int[np.ndarray, " T"]:
        """Returns the number of the element that each character belongs to.

        A character belongs to the element of its link. Other characters are `FREE`, or `OUTSIDE`.
        An element without characters has the word with the largest weight for it, if that is free.
        """
        # First the characters that are linked to the inside of an element.
        owners = np.full(len(self.links), OUTSIDE)
        owners[inside.start : inside.stop] = FREE
        for number, element in enumerate(elements):
            is_linked = (self.links >= element.start) & (self.links < element.stop)
            owners[(owners == FREE) & is_linked] = number

        # The word with the largest weight for the units of the source that overlap the element.
        for number, element in enumerate(elements):
            columns = (self.source.stops > element.start) & (self.source.starts < element.stop)
            weights = self.weights[:, columns].sum(axis=1)
            unit = weights.argmax()
            word = slice(self.target.starts[unit], self.target.stops[unit])
            if number not in owners and weights.any() and (owners[word] == FREE).all():
                owners[word] = number
        return owners

    def _gap(self, element: Element, inside: range) -> int:
        """Returns the position of an element without characters.

        It is before the punctuation that it touches in the source, or after the word before it.
        """
        links = self.links[inside.start : inside.stop]
        following = np.searchsorted(self.source.starts, element.stop)
        start = self.source.starts[following]
        if start == element.stop and not self.source.is_word[following] and start in links:
            return inside.start + int(np.argmax(links == start))

        # Otherwise after the last word that is linked to the nearest word before the element.
        before = np.where(links < element.start, links, NO_LINK)
        if before.max(initial=NO_LINK) == NO_LINK:
            return inside.start
        position = inside.start + _best_span(np.where(before == before.max(), 1, -1)).stop

        # Between two words, the space is on the same side as in the source.
        follows_space = self.source.text[element.start - 1].isspace()
        return _AFTER_WORD[follows_space].match(self.target.text, position, inside.stop).end()


def _best_span(gains: Float[np.ndarray, " T"]) -> range:
    """Returns the consecutive characters with the largest sum of gains; none if no gain is > 0."""
    # The best span ends where the running sum exceeds its earlier minimum the most.
    sums = np.cumsum([0, *gains])
    lowest = np.minimum.accumulate(sums)
    stop = int(np.argmax(sums - lowest))
    start = int(np.flatnonzero(sums[: stop + 1] == lowest[stop])[-1])
    return range(start, stop)
