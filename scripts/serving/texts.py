"""Texts and HTML as sentences to translate, and the text between them."""

import html
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import sentencex

from scripts.serving.inline_tags import EMOJI, Element, Mark, makes_one_word, parse, peel
from transformer.data.languages import base_code
from transformer.decoding.control.phrases import is_boundary

# Languages without spaces between sentences.
_UNSPACED = ("zh", "yue", "ja", "th", "lo", "km", "my")
_OPAQUE = "script|style|textarea|code|kbd|samp|var|math"  # elements without text to translate
_VOID = "area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr"
# Markup is a comment, an opaque element, or a tag, as HTML's tokenizer reads them. As in browsers,
# markup without its end reaches to the end of the text. So a search never begins again within
# markup, and its time is linear in the text. Python's HTMLParser takes quadratic time.
_VALUE = r"""(?>"[^"]*+"?+|'[^']*+'?+|[^\s>]*+)"""
_ATTRIBUTE = rf"[^\s/>][^\s/>=]*+(?:\s*+=\s*+{_VALUE})?+"
_ATTRIBUTES = rf"(?:[\s/]++|{_ATTRIBUTE})*+"
_MARKUP = re.compile(
    r"<!--(?:-?>|.*?(?:--!?>|\Z))"
    rf"|<({_OPAQUE})(?=[\s/>]){_ATTRIBUTES}>.*?(?:</\1(?=[\s/>]){_ATTRIBUTES}>?|\Z)"
    rf"|</?[a-z][^\s/>]*+{_ATTRIBUTES}>?"
    r"|<[!?/][^>]*>?",
    re.DOTALL | re.IGNORECASE | re.ASCII,
)
# The tag of an element with translate="no" whose content is not markup already.
_UNTRANSLATED = re.compile(
    rf"<(?!(?:{_OPAQUE}|{_VOID})[\s/>])([a-z][^\s/>]*+)(?>[\s/]++|{_ATTRIBUTE})*?"
    r"""translate\s*+=\s*+(["']?)no\2[\s/>]""",
    re.IGNORECASE | re.ASCII,
)
# Markup within a sentence: tags of these elements, comments, and opaque or void elements.
_INLINE = re.compile(
    r"<(?:(?P<void>!--|(?:code|img|kbd|math|samp|var|wbr)(?=[\s/>]))|(?P<end>/?)"
    r"(?P<name>a|abbr|acronym|b|bdi|bdo|big|cite|data|del|dfn|em|font|i|ins|mark|nobr|q|s|small"
    r"|span|strike|strong|sub|sup|time|tt|u)(?=[\s/>]))",
    re.IGNORECASE | re.ASCII,
)
_LINE_BREAK = re.compile(r"[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")
_PRE = re.compile(r"<(/?)pre(?=[\s/>])", re.IGNORECASE | re.ASCII)
_SPACES = (" ", "\t", "\xa0")
_ENDING = re.compile(r"[\s.,;:!?)]")  # what may follow a mark that takes the space before it along


class Piece(NamedTuple):
    """A sentence with the marks for its translation, or the text between two sentences."""

    is_sentence: bool
    text: str
    marks: Sequence[Element] = ()


class Model(NamedTuple):
    """The limits of a model.

    Attributes:
      fits: True for a sentence that is not too long.
      knows: True for spans that the vocabulary has.
      spans: finds the spans, such as emoji, that become marks if the model does not know them.
    """

    fits: Callable[[str], bool] = lambda sentence: True
    knows: Callable[[str], bool] = lambda span: True
    spans: re.Pattern[str] = re.compile(EMOJI)


ANY = Model()


def split_text(text: str, language: str, model: Model = ANY) -> list[Piece]:
    """Returns the sentences of a text, without white space at their ends, and the other text.

    A sentence ends at the end of its line at the latest. Text without a letter or digit is not
    translated. Spans that the model does not know become marks. If there are none, the pieces,
    joined, are the text.
    """
    # Marks are taken out first, so that they do not divide a sentence.
    content, marks = _take_out(_find_spans(text, model, ESCAPES["text"]))
    return _split(content, marks, language, model, ESCAPES["text"])


def split_html(text: str, language: str, model: Model = ANY) -> list[Piece]:
    """Returns the sentences of the text, unescaped, and the unchanged markup between them.

    Inline tags become marks of their sentence. Comments, elements such as script and code, and
    elements with translate="no" are markup. A line break in the text is a space, except in the
    element pre.
    """
    pieces = []
    parts = []  # text and marks since the last markup that ends a sentence
    previous_stop = 0
    in_pre = False
    for start, stop in [*_markup(text), (len(text), len(text))]:
        parts += _find_spans(html.unescape(text[previous_stop:start]), model, ESCAPES["html"])
        markup = text[start:stop]
        # Inline markup is within a sentence; other markup ends it.
        mark = _mark(markup)
        if mark:
            parts.append(mark)
        else:
            content, marks = _take_out(parts)
            if not in_pre:  # white space at the ends keeps its line breaks
                before, inside, after = _strip(content)
                content = before + _LINE_BREAK.sub(" ", inside) + after
            pieces += _split(content, marks, language, model, ESCAPES["html"])
            pieces.append(Piece(False, markup))
            parts = []
        previous_stop = stop
        pre_tag = _PRE.match(text, start)
        if pre_tag:
            in_pre = not pre_tag[1]
    return pieces


SPLITTERS = {"text": split_text, "html": split_html}
ESCAPES = {"text": str, "html": lambda text: html.escape(text, quote=False)}


def split_texts(
    texts: Sequence[str], text_format: str, language: str, model: Model
) -> list[list[Piece]]:
    return [SPLITTERS[text_format](text, language, model) for text in texts]


def shorten(sentence: str, fits: Callable[[str], bool]) -> list[Piece]:
    """Returns the sentence in pieces that all fit.

    It is cut at the white space nearest to its middle or, if there is none, in the middle.
    """
    if len(sentence) < 2 or fits(sentence):
        return [Piece(True, sentence)]
    half = len(sentence) // 2
    # Distances of centres from the middle are compared, in half characters.
    spaces = [match.span() for match in re.finditer(r"\s+", sentence)]
    start, end = min(spaces, key=lambda span: abs(sum(span) - len(sentence)), default=(half, half))
    between = Piece(False, sentence[start:end])
    return [*shorten(sentence[:start], fits), between, *shorten(sentence[end:], fits)]


def gap(source: str, target: str) -> str:
    """Returns a space if sentences of only the target language are separated by spaces."""
    return " " if base_code(source) in _UNSPACED and base_code(target) not in _UNSPACED else ""


def join(pieces: Sequence[Piece], translations: Iterator[str], between: str = "") -> str:
    """Returns the text with the next translation in place of each sentence.

    `between` separates the translations of two sentences that follow each other immediately.
    """
    parts = [""]
    is_after_sentence = False
    for is_sentence, text, _ in pieces:
        if is_sentence and is_after_sentence:
            parts.append(between)
        part = next(translations) if is_sentence else text
        # A translation may begin with a letter where its source begins with punctuation.
        if is_sentence != is_after_sentence and makes_one_word(parts[-1], part):
            parts.append(" ")
        parts.append(part)
        is_after_sentence = is_sentence or (is_after_sentence and not text)
    return "".join(parts)


def _markup(text: str) -> Iterator[tuple[int, int]]:
    """Yields the start and the stop of each markup.

    An element with translate="no" is one markup, up to its end tag if it has one.
    """
    start = 0
    depth = 0  # of open tags with the name of an element with translate="no"
    for markup in _MARKUP.finditer(text):
        # Within an untranslated element, only tags with its name matter.
        if not depth:
            start = markup.start()
            untranslated = _UNTRANSLATED.match(markup[0])
            if untranslated:
                depth = 1
                name = re.escape(untranslated[1])
                same_name = re.compile(rf"<(/?){name}(?=[\s/>])", re.IGNORECASE | re.ASCII)
        else:
            tag = same_name.match(markup[0])
            if tag:
                depth += -1 if tag[1] else 1
        if not depth:
            yield start, markup.end()
    if depth:
        yield start, len(text)


def _mark(markup: str) -> Mark | None:
    """Returns inline markup as a mark; None for other markup, and for a tag without its end."""
    inline = _INLINE.match(markup)
    if not inline or not markup.endswith(">"):
        return None
    # An untranslated element is one mark, whatever is in it.
    if inline["void"] or _UNTRANSLATED.match(markup):
        return Mark(markup)
    return Mark(markup, inline["name"].lower(), opens=not inline["end"])


def _find_spans(text: str, model: Model, escape: Callable[[str], str]) -> list[str | Mark]:
    """Returns the text in parts, where spans that the model does not know are marks, escaped.

    The words on both sides of a mark remain two words.
    """
    parts = []
    stop = 0
    for span in model.spans.finditer(text):
        if model.knows(span[0]):
            continue
        mark = _mark(span[0]) or Mark(span[0])
        parts += [text[stop : span.start()], mark._replace(text=escape(span[0]))]
        stop = span.end()
        before = text[max(span.start() - 1, 0) : span.start()]
        after = text[stop : stop + 1]
        if not mark.element and not is_boundary(before + after, len(before)):
            parts.append(" ")
    return [*parts, text[stop:]]


def _take_out(parts: Sequence[str | Mark]) -> tuple[str, list[Mark]]:
    """Returns the text of the parts, and the marks with their positions in it.

    A mark that is not a tag includes the space before it if white space or punctuation follows.
    """
    content = ""
    marks = []
    for before, part, after in zip(["", *parts], parts, [*parts[1:], ""], strict=False):
        if isinstance(part, str):
            content += part
            continue
        if not part.element and before[-1:] in _SPACES and _ENDING.match(after):
            part = Mark(content[-1] + part.text)
            content = content[:-1]
        marks.append(part._replace(position=len(content)))
    return content, marks


def _split(
    text: str,
    marks: Sequence[Mark],
    language: str,
    model: Model,
    escape: Callable[[str], str],
) -> list[Piece]:
    """Returns the sentences of a text, with their marks, and the rest, escaped."""
    pieces = []
    end = 0
    lines = [_split_line(line, language, model) for line in text.splitlines(keepends=True)]
    for part in itertools.chain(*lines):
        start = end
        end += len(part.text)
        # Between two pieces, tags that begin an element belong to the second one.
        is_later = [mark.position >= end + (not mark.opens) for mark in marks]
        count = [*is_later, True].index(True)
        part_marks = marks[:count]
        marks = marks[count:]
        root = parse(part_marks, start, end) if part.is_sentence else None
        if root:
            before, inside, after = peel(root, root.stop - 1)
            pieces += [Piece(False, before), Piece(True, part.text, inside), Piece(False, after)]
            continue
        # The texts between the marks are translated separately, or not at all.
        edges = [start, *(mark.position for mark in part_marks), end]
        spans = itertools.pairwise(edges)
        for span, mark in itertools.zip_longest(spans, part_marks, fillvalue=Mark("")):
            for piece in _split_line(text[slice(*span)], language, model):
                pieces.append(piece if piece.is_sentence else Piece(False, escape(piece.text)))
            pieces.append(Piece(False, mark.text))
    pieces += [Piece(False, mark.text) for mark in marks]
    return [piece for piece in pieces if piece.text]


def _split_line(line: str, language: str, model: Model) -> Iterator[Piece]:
    # The segments must be the line, character by character, so that the white space stays.
    segments = sentencex.segment(base_code(language), line)
    if "".join(segments) != line:
        segments = [line]
    # A point without a space after it may be inside a name.
    elif base_code(language) not in _UNSPACED:
        groups = [""]
        for segment in segments:
            groups[-1] += segment
            if segment[-1:].isspace():
                groups.append("")
        segments = groups
    for segment in segments:
        before, inside, after = _strip(segment)
        # Text without letters and digits is not translated.
        is_text = any(map(str.isalnum, inside))
        yield Piece(False, before)
        yield from shorten(inside, model.fits) if is_text else [Piece(False, inside)]
        yield Piece(False, after)


def _strip(text: str) -> tuple[str, str, str]:
    """Returns the white space before a text, the text without it, and the white space after it."""
    return text.partition(text.strip()) if text.strip() else (text, "", "")
