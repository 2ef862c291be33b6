"""Texts and HTML as sentences to translate, and what stands between them."""

import html
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from html.parser import HTMLParser
from typing import Any

import sentencex

from transformer.data.languages import base_code

Piece = tuple[bool, str]  # whether it is a sentence to translate, and the text
_STRIPPED = re.compile(r"(\s*)(.*?)(\s*)", re.DOTALL)


def split_text(text: str, language: str) -> list[Piece]:
    """Returns the sentences of a text, without white space at their ends, and the white space between them.

    A sentence ends at the end of its line at the latest. The pieces, joined, are the text.
    """
    return [piece for line in text.splitlines(keepends=True) for piece in _split_line(line, language)]


def split_html(text: str, language: str) -> list[Piece]:
    """Returns the sentences of the text nodes, unescaped, and the markup between them as it stands.

    Script, style and comments are markup. A line break in a text node is a space.
    """
    pieces: list[Piece] = []
    for is_text, run in _Runs(text):
        if not is_text:
            pieces.append((False, run))
            continue
        # White space at the ends keeps its line breaks.
        before, inside, after = _STRIPPED.fullmatch(html.unescape(run)).groups()
        pieces += [(False, before), *_split_line(" ".join(inside.splitlines()), language), (False, after)]
    return pieces


SPLITTERS: dict[str, Callable[[str, str], list[Piece]]] = {"text": split_text, "html": split_html}
ESCAPES: dict[str, Callable[[str], str]] = {"text": str, "html": lambda text: html.escape(text, quote=False)}


def shorten(sentence: str, fits: Callable[[str], bool]) -> list[Piece]:
    """Returns the sentence in pieces that all fit, cut at the white space nearest to the middle if there is any."""
    if len(sentence) < 2 or fits(sentence):
        return [(True, sentence)]
    middle = len(sentence) / 2
    spaces = [match.span() for match in re.finditer(r"\s+", sentence)]
    start, end = min(spaces, key=lambda span: abs(sum(span) / 2 - middle), default=(int(middle), int(middle)))
    rest = shorten(sentence[:start], fits), [(False, sentence[start:end])], shorten(sentence[end:], fits)
    return list(itertools.chain(*rest))


def join(pieces: Sequence[Piece], translations: Iterator[str], escape: Callable[[str], str]) -> str:
    """Returns the text with the next translation, escaped, in the place of each sentence."""
    return "".join(escape(next(translations)) if is_sentence else text for is_sentence, text in pieces)


def _split_line(line: str, language: str) -> Iterator[Piece]:
    segments = sentencex.segment(base_code(language), line)
    for segment in segments if "".join(segments) == line else [line]:
        before, sentence, after = _STRIPPED.fullmatch(segment).groups()
        yield from (
            (is_sentence, text) for is_sentence, text in ((False, before), (True, sentence), (False, after)) if text
        )


class _Runs(HTMLParser):
    """The runs of text and of markup of an HTML text, alternating, as (is_text, source)."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=False)
        self._starts = [(False, 0)]  # runs before they are joined: whether they are text, and their offset
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]
        self.feed(text)
        self.close()
        ends = [*(start for _, start in self._starts[1:]), len(text)]
        runs = [(is_text, text[start:end]) for (is_text, start), end in zip(self._starts, ends, strict=True)]
        self._runs = [(key, "".join(run for _, run in group)) for key, group in itertools.groupby(runs, lambda r: r[0])]

    def __iter__(self) -> Iterator[tuple[bool, str]]:
        return iter(self._runs)

    def _begin(self, is_text: bool) -> None:
        line, offset = self.getpos()
        self._starts.append((is_text, self._lines[line - 1] + offset))

    def handle_data(self, data: str) -> None:
        self._begin(is_text=self.cdata_elem is None)

    def handle_charref(self, name: str) -> None:
        self._begin(is_text=self.cdata_elem is None)

    handle_entityref = handle_charref

    def _markup(self, *_: Any) -> None:
        self._begin(is_text=False)

    handle_starttag = handle_endtag = handle_startendtag = _markup
    handle_comment = handle_decl = handle_pi = unknown_decl = _markup
