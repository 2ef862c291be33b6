"""Translation of texts and scoring of the translations, as validation and `transformer.evaluate` do it."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from transformer.decoding import bleu
from transformer.decoding.replicas import Replicas
from transformer.decoding.sharing import SharedTranslator
from transformer.decoding.translation import Translation
from transformer.decoding.translator import Translator


@dataclass(frozen=True)
class ScoredTranslations:
    """The best translation of each text, and the scores of all.

    `seconds` are from text to text, without `compile_seconds`: the time of compiling programs, or of loading them.
    """

    translations: list[Translation]
    scores: dict[str, float | str]
    seconds: float
    compile_seconds: float

    @property
    def hypotheses(self) -> list[str]:
        return [translation.text for translation in self.translations]

    @property
    def output_tokens(self) -> int:
        """The number of tokens, with EOS."""
        return sum(len(translation.tokens) for translation in self.translations)


def translate_and_score(
    translator: Translator | SharedTranslator,
    replicas: Replicas,
    texts: Sequence[str],
    references: bleu.References,
    language: bleu.Language,
    measures: Iterable[str],
    report: Callable[[int], None],
) -> ScoredTranslations:
    """Translates the texts and scores the best translation of each.

    Args:
      references, language, measures: see `bleu.score`.
      report: see `Translator.translate`.
    """
    began, compiled = time.perf_counter(), translator.compile_seconds
    best = [found[0] for found in translator.translate(replicas, texts, 1, report)]
    compile_seconds = translator.compile_seconds - compiled
    seconds = time.perf_counter() - began - compile_seconds
    scores = bleu.score([translation.text for translation in best], references, language, measures)
    return ScoredTranslations(best, scores, seconds, compile_seconds)
