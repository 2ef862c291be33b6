"""Translation of texts and scoring of the translations, as validation and `transformer.evaluate` do it."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from transformer.decoding import bleu
from transformer.decoding.replicas import Replicas
from transformer.decoding.sharing import SharedTranslator
from transformer.decoding.translator import Translator


@dataclass(frozen=True)
class ScoredTranslations:
    """Translations with their scores. `output_tokens` count EOS.

    `seconds` are from text to text, without `compile_seconds`: the time of compiling programs, or of loading them.
    """

    hypotheses: list[str]
    scores: dict[str, float | str]
    seconds: float
    compile_seconds: float
    output_tokens: int


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
    hypotheses = [translation.text for translation in best]
    tokens = sum(len(translation.tokens) for translation in best)
    scores = bleu.score(hypotheses, references, language, measures)
    return ScoredTranslations(hypotheses, scores, seconds, compile_seconds, tokens)
