"""Translation of documents: each sentence after the sentences before it, given their translations
(`data.context`).
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

from transformer.config.types import output_limit
from transformer.data.sources.source import SEPARATOR
from transformer.decoding.batches import Replicas
from transformer.decoding.control.control import Control
from transformer.decoding.control.controlled_decoder import ControlledDecoder
from transformer.decoding.translation import EMPTY, Translation
from transformer.support.errors import UserError


@dataclasses.dataclass(eq=False)
class DocumentDecoder(ControlledDecoder):
    """Translates texts that are the sentences of documents, in order; blank texts end documents.

    A sentence is searched after the best translations of at most `context` sentences before it, as
    in training. Its translation has no part of theirs. As many searches follow each other as the
    longest document has sentences.
    """

    context: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("min_length", "no_repeat_ngram"):
            if self.config[key]:
                raise UserError(
                    f"decoding.{key}={self.config[key]}: would count the sentences before too; set it to 0"
                )

    def translate(
        self,
        parameters: Replicas,
        texts: Sequence[str],
        n_best: int = 1,
        first_line: int = 1,
        report: Callable[[int], None] = lambda count: None,
        controls: Sequence[Control] = (),
    ) -> list[list[Translation]]:
        """Returns the translations of each text, as `TextDecoder.translate` does.

        Raises UserError for controls.
        """
        if any(map(any, controls)):
            raise UserError(
                "prefixes, phrases and glossaries are for single sentences; this model has data.context"
            )
        translations = [[EMPTY] * n_best for _ in texts]
        parts = itertools.groupby(range(len(texts)), lambda line: texts[line].strip() != "")
        documents = [list(lines) for has_text, lines in parts if has_text]
        report(len(texts) - sum(map(len, documents)))
        for number in range(max(map(len, documents), default=0)):
            begin = max(number - self.context, 0)
            windows = [lines[begin : number + 1] for lines in documents if number < len(lines)]
            first, last = windows[0][-1], windows[-1][-1]
            # The lines between are blank here, so that each sentence keeps its number, and with it
            # its random numbers.
            sources, controls = [""] * (last - first + 1), [Control()] * (last - first + 1)
            for lines in windows:
                row = lines[-1] - first
                sources[row], prefix = self._in_context(texts, translations, lines)
                controls[row] = Control(prefix)
            results = super().translate(
                parameters, sources, n_best, first_line + first, controls=controls
            )
            for *_, line in windows:
                given = len(controls[line - first].prefix)
                translations[line] = [
                    self._without(translation, given) for translation in results[line - first]
                ]
            report(len(windows))
        return translations

    def _in_context(
        self, texts: Sequence[str], translations: Sequence[list[Translation]], lines: Sequence[int]
    ) -> tuple[str, list[int]]:
        """Returns the source of the last line, and its output's first tokens, with as much context
        as fits.
        """
        vocabulary, (separator,) = (
            self.tokenizer.encoders[0],
            self.tokenizer.target.encode([SEPARATOR]),
        )
        size = len(vocabulary.encode([texts[lines[-1]]])[0])
        for first in range(len(lines)):
            source = f" {SEPARATOR} ".join(texts[line].strip() for line in lines[first:])
            length = len(vocabulary.encode([source])[0]) + 1  # of end-of-sentence
            prefix = [
                x
                for line in lines[first:-1]
                for x in (*translations[line][0].tokens[:-1], *separator)
            ]
            limit = output_limit(length - 1, self.config)
            # The output has room for as many tokens as the sentence has.
            if length <= self.config.max_source_length and len(prefix) + size <= limit:
                break
        return source, prefix

    def _without(self, translation: Translation, count: int) -> Translation:
        """Returns the translation without its first tokens, which were given."""
        if not translation.tokens:  # no hypothesis obeys the constraints
            return translation
        tokens, log_p = translation.tokens[count:], translation.token_log_probabilities[count:]
        (text,) = self.tokenizer.target.decode([list(tokens)])
        return dataclasses.replace(
            translation,
            text=" ".join(text.split()),
            tokens=tokens,
            pieces=translation.pieces[count:],
            token_log_probabilities=log_p,
            log_probability=sum(log_p),
        )
