"""Marks within a sentence: inline tags of HTML, and spans such as emoji that must not change.

The sentence is translated without its marks. `insertion` then inserts them into the translation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

EDGE = "\x02"  # begins and ends a sentence
MOST = 100  # marks of a sentence that are aligned
# Without letters and digits in frames, which may be words.
_SYMBOLS = r"\u2300-\u23ff\u2600-\u2775\u2794-\u27bf\u2b00-\u2bff\U0001f000-\U0001f0ff"
_PICTOGRAPH = rf"[{_SYMBOLS}\U0001f1e6-\U0001faff]"
_VARIANT = "[\u20e3\ufe0e\ufe0f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]"
EMOJI = rf"(?:{_PICTOGRAPH}{_VARIANT}*\u200d?)+"

URL_ENDS = "/=#&%+_~-"  # punctuation that may end a URL


class Mark(NamedTuple):
    """A part of a sentence that is not in its text.

    Attributes:
      element: the name of the element that a tag opens or closes; "" for marks that are not tags.
      opens: True for a tag that opens an element.
      position: the number of characters of the text before the mark.
    """

    text: str
    element: str = ""
    opens: bool = False
    position: int = 0


@dataclass
class Element:
    """An element around the characters `start` to `stop` of a sentence between `EDGE`s.

    For a mark that is not a tag, `start` equals `stop`. If one of the tags is in another sentence,
    that tag is "" here, and the element includes the edge.
    """

    start: int
    stop: int
    opening: str = ""
    closing: str = ""
    children: list["Element"] = field(default_factory=list)


def parse(marks: Sequence[Mark], start: int, end: int) -> Element | None:
    """Returns a root element, without tags, around a sentence and its marks.

    `start` and `end` are the span of the sentence in the text in which the marks have positions.
    Returns None if the marks cannot be aligned: their tags are not well nested, or there are more
    than `MOST`.
    """
    if len(marks) > MOST:
        return None
    # In the element's coordinates, the edge before the sentence has position 0.
    root = Element(0, end - start + 2)
    stack = [("", root)]
    for markup, name, opens, position in marks:
        position += 1 - start
        open_name, parent = stack[-1]
        if opens or not name:
            # Until its end tag is found, an element reaches to the end of the sentence.
            child = Element(position, root.stop if opens else position, markup)
            parent.children.append(child)
            if opens:
                stack.append((name, child))
        elif name == open_name:
            parent.stop = position
            parent.closing = markup
            stack.pop()
        elif parent is root:  # the element begins in an earlier sentence
            root.children = [Element(0, position, closing=markup, children=root.children)]
        else:
            return None
    return root


def peel(element: Element, end: int) -> tuple[str, list[Element], str]:
    """Returns an element's markup before all text, the elements within, and the markup after.

    `end` is the position of the edge after the text. An element around the whole text is peeled
    too.
    """
    # Position 0 is the edge before the text, so the text begins at 1.
    before = [child for child in element.children if child.stop <= 1]
    after = [child for child in element.children if child.start >= end]
    inside = element.children[len(before) : len(element.children) - len(after)]
    opening = element.opening + serialize(before)
    closing = serialize(after) + element.closing
    if inside and inside[0].start <= 1 and inside[0].stop >= end:
        inner_opening, inside, inner_closing = peel(inside[0], end)
        opening += inner_opening
        closing = inner_closing + closing
    return opening, inside, closing


def serialize(elements: Sequence[Element]) -> str:
    tags = [element.opening + serialize(element.children) + element.closing for element in elements]
    return "".join(tags)


def makes_one_word(before: str, after: str) -> bool:
    """True if two texts without white space between them would make one word or one URL."""
    is_open = before[-1:].isalnum() or ("://" in before and before[-1:] in URL_ENDS)
    return is_open and after[:1].isalnum()
