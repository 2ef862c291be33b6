"""Translation of documents (`data.context`).

The search for a sentence reads the sentences before it, and continues their translations.
"""

import dataclasses
import itertools
from collections.abc import Sequence

from transformer.config.types import output_limit
from transformer.data.sources.source import SEPARATOR
from transformer.decoding.batches import Replicas
from transformer.decoding.control.control import Control
from transformer.decoding.control.controlled_decoder import ControlledDecoder
from transformer.decoding.text_decoder import Report
from transformer.decoding.translation import EMPTY, Translation, Translations
from transformer.support.errors import UserError


@dataclasses.dataclass(eq=False)
class DocumentDecoder(ControlledDecoder):
    """Translates texts that are the sentences of documents, in order; blank texts end documents.

    The search for a sentence continues the best translations of at most `context` sentences before
    it, as in training. The result is only the translation of the sentence itself. The number of
    searches, one after the other, is the number of sentences of the longest document.
    """

    context: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("min_length", "no_repeat_ngram"):
            value = self.decoding_config[key]
            if value:
                raise UserError(
                    f"decoding.{key}={value}: would count the sentences before too; set it to 0"
                )

    def translate(
        self,
        parameters: Replicas,
        texts: Sequence[str],
        n_best: int = 1,
        first_line: int = 1,
        report: Report = lambda count: None,
        controls: Sequence[Control] = (),
    ) -> Translations:
        """Returns the translations of each text, as `TextDecoder.translate` does.

        Raises UserError for controls.
        """
        if any(map(any, controls)):
            raise UserError(
                "prefixes, phrases and glossaries are for single sentences; "
                "this model has data.context"
            )

        # Runs of lines that are not blank.
        translations = [[EMPTY] * n_best for _ in texts]
        parts = itertools.groupby(range(len(texts)), lambda line: texts[line].strip() != "")
        documents = [list(lines) for has_text, lines in parts if has_text]
        report(len(texts) - sum(map(len, documents)))

        # The n-th sentences of all documents are searched together.
        for number in range(max(map(len, documents), default=0)):
            begin = max(number - self.context, 0)
            windows = [lines[begin : number + 1] for lines in documents if number < len(lines)]

            # The lines between are blank here. So each sentence keeps its line number, which
            # determines its random numbers.
            first = windows[0][-1]
            count = windows[-1][-1] - first + 1
            sources = [""] * count
            controls = [Control()] * count
            for lines in windows:
                row = lines[-1] - first
                sources[row], prefix = self._in_context(texts, translations, lines)
                controls[row] = Control(prefix)
            results = super().translate(
                parameters, sources, n_best, first_line + first, controls=controls
            )
            for *_, line in windows:
                row = line - first
                prefix_length = len(controls[row].prefix)
                translations[line] = [self._without(best, prefix_length) for best in results[row]]
            report(len(windows))
        return translations

    def _in_context(
        self, texts: Sequence[str], translations: Translations, lines: Sequence[int]
    ) -> tuple[str, list[int]]:
        """Returns the source of the last line and the prefix of its output, with their context.

        The context is as many of the lines before it as fit.
        """
        vocabulary = self.tokenizer.encoders[0]
        # The tokens after a text, with the space before the separator.
        text, joined = self.tokenizer.target.encode(["0", f"0 {SEPARATOR}"])
        separator = joined[len(text) :]
        size = len(vocabulary.encode([texts[lines[-1]]])[0])

        # From the whole context to none, until it fits.
        for first in range(len(lines)):
            source = f" {SEPARATOR} ".join(texts[line].strip() for line in lines[first:])
            prefix = []
            for line in lines[first:-1]:
                prefix += [*translations[line][0].tokens[:-1], *separator]

            # The output has room for as many tokens as the sentence has.
            length = len(vocabulary.encode([source])[0])  # without EOS
            limit = output_limit(length, self.decoding_config)
            if length < self.decoding_config.max_source_length and len(prefix) + size <= limit:
                break
        return source, prefix

    def _without(self, translation: Translation, count: int) -> Translation:
        """Returns the translation without its prefix, the first `count` tokens."""
        if not translation.tokens:  # no hypothesis obeys the constraints
            return translation
        tokens = translation.tokens[count:]
        log_p = translation.token_log_probabilities[count:]
        (text,) = self.tokenizer.target.decode([list(tokens)])
        return dataclasses.replace(
            translation,
            text=" ".join(text.split()),
            tokens=tokens,
            pieces=translation.pieces[count:],
            token_log_probabilities=log_p,
            log_probability=sum(log_p),
        )
