"""Texts and HTML as sentences to translate, and the text between them."""

import html
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import sentencex

from scripts.serving.emoji import take_out
from scripts.serving.inline_tags import Element, Mark, parse, peel
from transformer.data.languages import base_code

_UNSPACED = ("zh", "yue", "ja", "th", "lo", "km", "my")  # languages without spaces between sentences
_UNREAD = "script|style|textarea|code|kbd|samp|var|math"  # elements without text to translate
# Comments, these elements, and tags, as browsers read them: one without its end reaches to the end of the text. So a
# search never begins again within markup, and its time is linear in the text. Python's HTMLParser takes quadratic time.
_VALUE = r"""=\s*+(?>"[^"]*+"?+|'[^']*+'?+|[^\s>]*+)"""
_ATTRIBUTES = rf"(?:[^>=]++|{_VALUE})*+"
_MARKUP = re.compile(
    rf"""<!--(?:-?>|.*?(?:--!?>|\Z))|<({_UNREAD})(?=[\s/>]){_ATTRIBUTES}>.*?(?:</\1(?=[\s/>])[^>]*>?|\Z)"""
    rf"""|</?[a-z]{_ATTRIBUTES}>?|<[!?/][^>]*>?""",
    re.DOTALL | re.IGNORECASE,
)
# The tag of an element with translate="no" that has content which is not markup already.
_WITHOUT_CONTENT = f"{_UNREAD}|area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr"
_UNTRANSLATED = re.compile(
    rf"""<(?!(?:{_WITHOUT_CONTENT})[\s/>])([a-z][^\s/>]*+)"""
    rf"""(?>{_VALUE}|[^>=])*?(?<=[\s/"'])translate\s*+=\s*+(["']?)no\2[\s/>]""",
    re.IGNORECASE,
)
# Markup within a sentence: tags of these elements, comments, and elements without words of the sentence.
_INLINE = re.compile(
    r"<(?:(?P<void>!--|(?:code|img|kbd|math|samp|var|wbr)(?=[\s/>]))|(?P<end>/?)"
    r"(?P<name>a|abbr|acronym|b|bdi|bdo|big|cite|data|del|dfn|em|font|i|ins|mark|nobr|q|s|small|span|strike|strong|sub"
    r"|sup|time|tt|u)(?=[\s/>]))",
    re.IGNORECASE,
)
_LINE_BREAK = re.compile(r"[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")
_PRE = re.compile(r"<(/?)pre(?=[\s/>])", re.IGNORECASE)


class Piece(NamedTuple):
    """A sentence, with the marks that its translation gets, if any; or the text between two sentences."""

    is_sentence: bool
    text: str
    marks: Element | None = None


class Model(NamedTuple):
    """The limits of a model: whether a sentence fits it, and whether its vocabulary has an emoji."""

    fits: Callable[[str], bool] = lambda sentence: True
    knows: Callable[[str], bool] = lambda emoji: True


ANY = Model()


def split_text(text: str, language: str, model: Model = ANY) -> list[Piece]:
    """Returns the sentences of a text, without white space at their ends, and the text between them.

    A sentence ends at the end of its line at the latest. Text without a letter or digit is not translated. Emoji that
    the vocabulary lacks are marks. Without any, the pieces, joined, are the text.
    """
    return _split(text, [], language, model, ESCAPES["text"])


def split_html(text: str, language: str, model: Model = ANY) -> list[Piece]:
    """Returns the sentences of the text, unescaped, and the markup between them as it stands.

    Inline tags are marks of their sentence. Comments, elements such as script and code, and those with translate="no"
    are markup. A line break in the text is a space, except in the element pre.
    """
    pieces: list[Piece] = []
    content, marks = "", []  # since the last markup that ends a sentence
    end, in_pre = 0, False
    for start, stop in [*_markup(text), (len(text), len(text))]:
        content += html.unescape(text[end:start])
        if mark := _mark(text[start:stop], len(content)):
            is_apart = content[-1:].isspace() and text[stop : stop + 1].isspace()
            if mark.is_alone and is_apart and all(other.position < len(content) for other in marks[-1:]):
                # One of the two spaces belongs to the mark.
                mark = Mark(len(content) - 1, content[-1] + mark.text)
                content = content[:-1]
            marks.append(mark)
        else:
            pieces += [*_split_content(content, marks, language, model, in_pre), Piece(False, text[start:stop])]
            content, marks = "", []
        end = stop
        if tag := _PRE.match(text, start):
            in_pre = not tag[1]
    return pieces


SPLITTERS: dict[str, Callable[..., list[Piece]]] = {"text": split_text, "html": split_html}
ESCAPES: dict[str, Callable[[str], str]] = {"text": str, "html": lambda text: html.escape(text, quote=False)}


def shorten(sentence: str, fits: Callable[[str], bool]) -> list[Piece]:
    """Returns the sentence in pieces that all fit, cut at the white space nearest to the middle if there is any."""
    if len(sentence) < 2 or fits(sentence):
        return [Piece(True, sentence)]
    middle = len(sentence) / 2
    spaces = [match.span() for match in re.finditer(r"\s+", sentence)]
    start, end = min(spaces, key=lambda span: abs(sum(span) / 2 - middle), default=(int(middle), int(middle)))
    between = Piece(False, sentence[start:end])
    return [*shorten(sentence[:start], fits), between, *shorten(sentence[end:], fits)]


def gap(source: str, target: str) -> str:
    """Returns what separates the translations of two sentences between which the source has nothing."""
    return " " if base_code(source) in _UNSPACED and base_code(target) not in _UNSPACED else ""


def join(pieces: Sequence[Piece], translations: Iterator[str], between: str = "") -> str:
    """Returns the text with the next translation in the place of each sentence, and `between` them."""
    joined, is_after_sentence = [], False
    for is_sentence, text, _ in pieces:
        if is_sentence and is_after_sentence:
            joined.append(between)
        joined.append(next(translations) if is_sentence else text)
        is_after_sentence = is_sentence or (is_after_sentence and not text)
    return "".join(joined)


def _markup(text: str) -> Iterator[tuple[int, int]]:
    """Yields where markup starts and ends. An element with translate="no" ends with its own end tag, if it has one."""
    start, depth = 0, 0  # of an element with translate="no": how many tags of its name are open
    for markup in _MARKUP.finditer(text):
        if depth == 0:
            start = markup.start()
            if first := _UNTRANSLATED.match(markup[0]):
                depth, same_name = 1, re.compile(rf"<(/?){re.escape(first[1])}(?=[\s/>])", re.IGNORECASE)
        elif tag := same_name.match(markup[0]):
            depth += -1 if tag[1] else 1
        if depth == 0:
            yield start, markup.end()
    if depth:
        yield start, len(text)


def _mark(markup: str, position: int) -> Mark | None:
    """Returns inline markup as a mark; None for other markup, and for a tag that reaches to the end of the text."""
    inline = _INLINE.match(markup)
    if not inline or not markup.endswith(">"):
        return None
    if inline["void"] or _UNTRANSLATED.match(markup):
        return Mark(position, markup)
    name = inline["name"].lower()
    return Mark(position, markup, closes=name) if inline["end"] else Mark(position, markup, opens=name)


def _split_content(text: str, marks: list[Mark], language: str, model: Model, keeps_lines: bool) -> list[Piece]:
    # White space at the ends keeps its line breaks.
    before, inside, after = _strip(text)
    inside = inside if keeps_lines else _LINE_BREAK.sub(" ", inside)
    return _split(before + inside + after, marks, language, model, ESCAPES["html"])


def _split(text: str, marks: list[Mark], language: str, model: Model, escape: Callable[[str], str]) -> list[Piece]:
    """Returns the sentences of a text, with their marks, and the rest, escaped."""
    text, marks = take_out(text, marks, model.knows)
    parts = [part for line in text.splitlines(keepends=True) for part in _split_line(line, language, model)]
    if not marks:
        return [part if part.is_sentence else Piece(False, escape(part.text)) for part in parts]
    pieces: list[Piece] = []
    end = 0
    for part in parts:
        start = end
        end += len(part.text)
        # Between two pieces, tags that end an element belong to the first one.
        near = list(itertools.takewhile(lambda mark: mark.position <= end, marks))  # noqa: B023
        while near and near[-1].position == end and not near[-1].closes:
            near.pop()
        marks = marks[len(near) :]
        own = [mark._replace(position=mark.position - start) for mark in near]
        pieces += (piece for piece in _settle(part, own, escape) if piece.text)
    return pieces + [Piece(False, mark.text) for mark in marks]


def _settle(piece: Piece, marks: Sequence[Mark], escape: Callable[[str], str]) -> Iterator[Piece]:
    """Yields a piece and its marks. Those inside a sentence stay in it, if an alignment can place them."""
    if piece.is_sentence and (element := parse(piece.text, marks)):
        before, element, after = peel(element)
        yield Piece(False, before)
        yield Piece(True, piece.text, element if element.children else None)
        yield Piece(False, after)
        return
    # The texts between the marks are translated separately, or not at all.
    ends = [*(mark.position for mark in marks), len(piece.text)]
    markup = [*(mark.text for mark in marks), ""]
    for start, end, text in zip([0, *ends], ends, markup, strict=False):
        before, inside, after = _strip(piece.text[start:end])
        is_text = piece.is_sentence and any(map(str.isalnum, inside))
        yield Piece(False, escape(before))
        yield Piece(is_text, inside if is_text else escape(inside))
        yield Piece(False, escape(after) + text)


def _split_line(line: str, language: str, model: Model) -> Iterator[Piece]:
    segments = sentencex.segment(base_code(language), line)
    if "".join(segments) != line:
        segments = [line]
    elif base_code(language) not in _UNSPACED:  # a point without a space after it may be inside a name
        groups: list[list[str]] = [[]]
        for segment in segments:
            groups[-1].append(segment)
            if segment[-1:].isspace():
                groups.append([])
        segments = map("".join, groups)
    for segment in segments:
        before, inside, after = _strip(segment)
        if before:
            yield Piece(False, before)
        if any(map(str.isalnum, inside)):
            yield from shorten(inside, model.fits)
        elif inside:
            yield Piece(False, inside)
        if after:
            yield Piece(False, after)


def _strip(text: str) -> tuple[str, str, str]:
    """Returns the white space before a text, the text without it, and the white space after it."""
    return text.partition(text.strip()) if text.strip() else (text, "", "")
