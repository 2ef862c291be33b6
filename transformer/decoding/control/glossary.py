"""Glossaries: translations that are required where a source has a term."""

import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

from transformer.data.sources.lines import read_text_file
from transformer.decoding.control.phrases import find_words
from transformer.support.errors import UserError


class Glossary:
    """Terms and their translations.

    A source has a term where its words follow each other in the same case, from the boundary of a
    word to another one. The longest terms are found first, and no word belongs to two.

    entries: for each term its name in errors, the term, and its translations, one of which
      suffices. Raises UserError if a text is empty, or a term has other translations in an earlier
      entry.
    """

    def __init__(self, entries: Iterable[tuple[str, str, Sequence[str]]]) -> None:
        terms = {}
        for name, term, translations in entries:
            term, translations = _normalize(term), list(translations)
            if not (term and translations and all(map(str.strip, translations))):
                raise UserError(
                    f"{name}: must be a term with its translation, both with characters other than spaces"
                )
            if (earlier := terms.setdefault(term, translations)) != translations:
                raise UserError(
                    f"{name}: {term!r:.60} has other translations already, {', '.join(earlier)!r:.60}; list all "
                    "alternatives in one entry"
                )
        self.terms = sorted(terms.items(), key=lambda item: -len(item[0]))

    @classmethod
    def read(cls, name: str) -> "Glossary":
        """Reads a file with a term, a tab and its translation a line; further tabs precede
        alternatives.
        """
        lines = enumerate(read_text_file(Path(name)), start=1)
        columns = [
            (f"{name}: line {number}", line.split("\t")) for number, line in lines if line.strip()
        ]
        return cls((where, term, translations) for where, (term, *translations) in columns)

    def required(self, source: str, phrases: Sequence[list[str]]) -> list[list[str]]:
        """Returns the required phrases of a source, and the translations of the terms that it has."""
        text, phrases = _normalize(source), list(phrases)
        for term, translations in self.terms:
            start = 0
            while (start := find_words(text, term, start)) >= 0:
                phrases += [] if translations in phrases else [translations]
                # no later term has these words
                text = f"{text[:start]}\n{text[start + len(term) :]}"
        return phrases


def _normalize(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())
