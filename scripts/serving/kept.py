"""Spans that a translation keeps: URLs, e-mail addresses, placeholders, tags and emoji.

A model may copy a span by itself. If a translation has lost or changed one, the text is translated
again without its spans. They are then inserted where the cross-attention links their place.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence

from scripts.serving import texts
from scripts.serving.inline_tags import EMOJI
from scripts.serving.insertion import insert
from transformer.api import Model
from transformer.decoding.control.arguments import check_items, check_texts
from transformer.decoding.control.phrases import WORD

# A URL may have brackets and {placeholders} within it. Punctuation at its end belongs to its
# sentence.
_URL_CHARACTERS = (
    rf"(?:\([^\s()<>]*\)|\{{[^{{}}\s]{{0,60}}\}}|[!#$%&'*+,./:;=?@~-]|{WORD.pattern})+"
)
_URL = rf"(?i:https?://|\bwww\.){_URL_CHARACTERS}(?<![.,:;!?'*])"
# A search never begins again within an address, so its time is linear in the text.
_NAME = r"[a-zA-Z0-9_.+%-]"
_EMAIL = rf"(?<!{_NAME}){_NAME}++@[a-zA-Z0-9-]+(?:\.[a-zA-Z0-9-]+)+"
# {{{ name }}}, {{ name }}, {0}, ${name}
_BRACES = r"\{{3}[^{}\n]{1,60}\}{3}|\{\{[^{}\n]{1,60}\}\}|[$%]?\{[^{}\s]{0,60}\}"
# As in C and Python: %s, %5.2f, %1$s, %(name)d. No letter follows, unlike in "5 %ige".
_PERCENT = (
    r"%(?:\(\w{1,60}\)|\d{1,2}\$)?[-+0#]*\d{0,4}(?:\.\d{1,4})?(?:hh?|ll?|[jztL])?"
    r"[diouxXeEfFgGcs@](?![^\W\d_])"
)
_TAG = r"</?(?:[a-zA-Z][^<>\n]{0,500}|\d{1,4}/?)>"
_KEYCAP = r"[#*0-9]\ufe0f?\u20e3"
_SYMBOL = r"[\u00a9\u00ae\u203c-\u3299]\ufe0f"  # that a variation selector makes an emoji
SPANS = re.compile("|".join([_URL, _EMAIL, _BRACES, _PERCENT, _TAG, _SYMBOL, EMOJI, _KEYCAP]))


def find_lost(sources: Sequence[str], translations: Sequence[Sequence[str]]) -> list[int]:
    """Returns the numbers of the sources with a translation that does not have the same spans."""
    lost = []
    for i, source in enumerate(sources):
        spans = Counter(SPANS.findall(source))
        if any(Counter(SPANS.findall(text)) != spans for text in translations[i]):
            lost.append(i)
    return lost


def limits(fits: Callable[[str], bool], knows: Callable[[str], bool]) -> list[texts.Model]:
    """Returns the limits of the first translation of a text, and of the one without spans."""
    return [texts.Model(fits, knows, SPANS), texts.Model(fits, lambda span: False, SPANS)]


def translate(model: Model, sources: Sequence[str]) -> list[str]:
    """Returns the translations of texts, which may have several sentences, with all of their spans.

    Raises UserError as `model.translate` does.
    """

    def fits(sentence: str) -> bool:
        return model.num_tokens(sentence) <= model.config.decoding.max_source_length

    sources = check_items(sources, "sources", "strings")
    check_texts(sources, "sources")  # its result has spaces for line breaks, which end sentences
    with_spans, without_spans = limits(fits, model.knows)
    translations = _translate(model, sources, with_spans)
    lost = find_lost(sources, [[text] for text in translations])
    again = _translate(model, [sources[i] for i in lost], without_spans)
    for i, translation in zip(lost, again, strict=True):
        translations[i] = translation
    return translations


def _translate(model: Model, sources: Sequence[str], model_limits: texts.Model) -> list[str]:
    language = model.config.data.source_language
    between = texts.gap(language, model.config.data.target_language)
    split = texts.split_texts(sources, "text", language, model_limits)
    sentences = [piece for pieces in split for piece in pieces if piece.is_sentence]
    hypotheses = model.translate([sentence.text for sentence in sentences])
    translations = (
        insert(model, sentence.text, sentence.marks, best.text, str)
        for sentence, (best, *_) in zip(sentences, hypotheses, strict=True)
    )
    return [texts.join(pieces, translations, between) for pieces in split]
