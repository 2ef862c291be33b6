"""Texts and HTML as sentences to translate, and what stands between them."""

import html
import re
from collections.abc import Callable, Iterator, Sequence

import sentencex

from transformer.data.languages import base_code

Piece = tuple[bool, str]  # whether it is a sentence to translate, and the text
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
_PRE = re.compile(r"<(/?)pre(?=[\s/>])", re.IGNORECASE)


def split_text(text: str, language: str) -> list[Piece]:
    """Returns the sentences of a text, without white space at their ends, and the white space between them.

    A sentence ends at the end of its line at the latest. Text without a letter or digit is not translated. The
    pieces, joined, are the text.
    """
    return [piece for line in text.splitlines(keepends=True) for piece in _split_line(line, language)]


def split_html(text: str, language: str) -> list[Piece]:
    """Returns the sentences of the text nodes, unescaped, and the markup between them as it stands.

    Comments, elements such as script and code, and those with translate="no" are markup. A line break in a text node is
    a space, except in the element pre.
    """
    pieces: list[Piece] = []
    end, in_pre = 0, False
    for start, stop in _markup(text):
        pieces += [*_split_node(text[end:start], language, in_pre), (False, text[start:stop])]
        end = stop
        if tag := _PRE.match(text, start):
            in_pre = not tag[1]
    return pieces + _split_node(text[end:], language, in_pre)


SPLITTERS: dict[str, Callable[[str, str], list[Piece]]] = {"text": split_text, "html": split_html}
ESCAPES: dict[str, Callable[[str], str]] = {"text": str, "html": lambda text: html.escape(text, quote=False)}


def shorten(sentence: str, fits: Callable[[str], bool]) -> list[Piece]:
    """Returns the sentence in pieces that all fit, cut at the white space nearest to the middle if there is any."""
    if len(sentence) < 2 or fits(sentence):
        return [(True, sentence)]
    middle = len(sentence) / 2
    spaces = [match.span() for match in re.finditer(r"\s+", sentence)]
    start, end = min(spaces, key=lambda span: abs(sum(span) / 2 - middle), default=(int(middle), int(middle)))
    return [*shorten(sentence[:start], fits), (False, sentence[start:end]), *shorten(sentence[end:], fits)]


def gap(source: str, target: str) -> str:
    """Returns what separates the translations of two sentences between which the source has nothing."""
    return " " if base_code(source) in _UNSPACED and base_code(target) not in _UNSPACED else ""


def join(pieces: Sequence[Piece], translations: Iterator[str], escape: Callable[[str], str], between: str = "") -> str:
    """Returns the text with the next translation, escaped, in the place of each sentence, and `between` them."""
    joined, is_after_sentence = [], False
    for is_sentence, text in pieces:
        if is_sentence and is_after_sentence:
            joined.append(between)
        joined.append(escape(next(translations)) if is_sentence else text)
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


def _split_node(node: str, language: str, keeps_lines: bool) -> list[Piece]:
    # White space at the ends keeps its line breaks.
    before, inside, after = _strip(html.unescape(node))
    pieces = split_text(inside if keeps_lines else " ".join(inside.splitlines()), language)
    kept = [(is_sentence, text if is_sentence else ESCAPES["html"](text)) for is_sentence, text in pieces]
    return [(False, before), *kept, (False, after)]


def _split_line(line: str, language: str) -> Iterator[Piece]:
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
        is_text = any(map(str.isalnum, segment))
        pieces = zip((False, is_text, False), _strip(segment), strict=True)
        yield from ((is_sentence, text) for is_sentence, text in pieces if text)


def _strip(text: str) -> tuple[str, str, str]:
    """Returns the white space before a text, the text without it, and the white space after it."""
    return text.partition(text.strip()) if text.strip() else (text, "", "")
