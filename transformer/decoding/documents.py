"""Translation of documents: each sentence after the sentences before it, given their translations (`data.context`)."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from transformer.config_types import Config
from transformer.data.sources.documents import SEPARATOR
from transformer.decoding.batches import Replicas
from transformer.decoding.control import Control
from transformer.decoding.text_decoder import TextDecoder
from transformer.decoding.translation import EMPTY, Translation
from transformer.errors import UserError


@dataclasses.dataclass(eq=False)
class DocumentDecoder(TextDecoder):
    """Translates texts that are the sentences of documents, in order; blank texts end documents.

    A sentence is searched after the best translations of at most `context` sentences before it, as in training. Its
    translation has no part of theirs. As many searches follow each other as the longest document has sentences.
    """

    context: int = 0

    def translate(
        self,
        parameters: Replicas,
        texts: Sequence[str],
        n_best: int = 1,
        first_line: int = 1,
        report: Callable[[int], None] = lambda count: None,
        controls: Sequence[Control] = (),
    ) -> list[list[Translation]]:
        """Returns the translations of each text, as `TextDecoder.translate` does. Raises UserError for controls."""
        if any(map(any, controls)):
            raise UserError("prefixes, phrases and glossaries are for single sentences; this model has data.context")
        translations, documents = [[EMPTY] * n_best for _ in texts], _documents(texts)
        report(len(texts) - sum(map(len, documents)))
        separator = self.tokenizer.target.encode([SEPARATOR])[0]
        for number in range(max(map(len, documents), default=0)):
            windows = [self._window(texts, lines[: number + 1]) for lines in documents if number < len(lines)]
            prefixes = [
                [token for line in window[:-1] for token in (*translations[line][0].tokens[:-1], *separator)]
                for window in windows
            ]
            found = super().translate(
                *(parameters, [_join(texts, window) for window in windows], n_best, first_line),
                controls=[Control(prefix=prefix) for prefix in prefixes],
            )
            for window, prefix, best in zip(windows, prefixes, found, strict=True):
                translations[window[-1]] = [self._without(translation, len(prefix)) for translation in best]
            report(len(windows))
        return translations

    def _window(self, texts: Sequence[str], lines: list[int]) -> list[int]:
        """Returns the sentence with the context that the longest source allows."""
        window, vocabulary = lines[-1 - self.context :], self.tokenizer.encoders[0]
        while len(window) > 1 and len(vocabulary.encode([_join(texts, window)])[0]) >= self.config.max_source_length:
            window = window[1:]
        return window

    def _without(self, translation: Translation, count: int) -> Translation:
        """Returns the translation without its first tokens, which were given."""
        if not translation.tokens:  # no hypothesis obeys the constraints
            return translation
        tokens, log_p = translation.tokens[count:], translation.token_log_probabilities[count:]
        (text,) = self.tokenizer.target.decode([list(tokens)])
        own = {"text": " ".join(text.split()), "tokens": tokens, "pieces": translation.pieces[count:]}
        own |= {"token_log_probabilities": log_p, "log_probability": sum(log_p)}
        return dataclasses.replace(translation, **own)


def _documents(texts: Sequence[str]) -> list[list[int]]:
    """Returns the numbers of the texts of each document."""
    documents: list[list[int]] = [[]]
    for number, text in enumerate(texts):
        if text.strip():
            documents[-1].append(number)
        elif documents[-1]:
            documents.append([])
    return [document for document in documents if document]


def _join(texts: Sequence[str], lines: Sequence[int]) -> str:
    return f" {SEPARATOR} ".join(texts[line].strip() for line in lines)


def make_decoder(data: Config, *known: Any) -> TextDecoder:
    """Returns the decoder of sentences, or of documents, for models that were trained with the group `data`."""
    return DocumentDecoder(*known, context=data.context) if data.context else TextDecoder(*known)
