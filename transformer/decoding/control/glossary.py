"""Glossaries: translations that are required where a source has a term."""

import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

from transformer.data.sources.lines import read_text_file
from transformer.decoding.control.phrases import find_words
from transformer.support.errors import UserError


class Glossary:
    """Terms and their translations.

    A source has a term if the words of the term follow each other in the same case, from the
    boundary of a word to another one. The longest terms are found first, and each word belongs to
    one term only.

    `entries` has for each term its name in errors, the term, and its translations. One of the
    translations suffices. Raises UserError if a text is empty, or a term has other translations in
    an earlier entry.
    """

    def __init__(self, entries: Iterable[tuple[str, str, Sequence[str]]]) -> None:
        terms = {}
        for name, term, translations in entries:
            term = _normalize(term)
            translations = list(translations)
            if not (term and translations and all(map(str.strip, translations))):
                raise UserError(
                    f"{name}: must be a term with its translation, "
                    "both with characters other than spaces"
                )
            earlier = terms.setdefault(term, translations)
            if earlier != translations:
                raise UserError(
                    f"{name}: {term!r:.60} has other translations already, "
                    f"{', '.join(earlier)!r:.60}; list all alternatives in one entry"
                )
        self.terms = sorted(terms.items(), key=lambda item: -len(item[0]))

    @classmethod
    def read(cls, name: str) -> "Glossary":
        """Reads a file whose lines have a term, a tab and its translation.

        Further tabs precede alternative translations.
        """
        entries = []
        for number, line in enumerate(read_text_file(Path(name)), start=1):
            if line.strip():
                term, *translations = line.split("\t")
                entries.append((f"{name}: line {number}", term, translations))
        return cls(entries)

    def required(self, source: str, phrases: Sequence[list[str]]) -> list[list[str]]:
        """Returns the required phrases of a source, with the translations of the terms it has."""
        # Longest terms first: see `terms`.
        text = _normalize(source)
        phrases = list(phrases)
        for term, translations in self.terms:
            start = find_words(text, term)
            while start >= 0:
                if translations not in phrases:
                    phrases.append(translations)

                # No later term has these words.
                text = f"{text[:start]}\n{text[start + len(term) :]}"
                start = find_words(text, term, start)
        return phrases


def _normalize(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())
