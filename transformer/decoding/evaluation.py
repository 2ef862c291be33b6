"""Translating texts and scoring the translations: what validation and `transformer.evaluate` share."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transformer.decoding import bleu
from transformer.decoding.translator import Translator


@dataclass(frozen=True)
class Evaluation:
    """Translations, their scores, the seconds they took, and the pieces they have, ends of sentences included."""

    hypotheses: list[str]
    scores: bleu.Scores
    seconds: float
    output_tokens: int


def evaluate_translations(
    translator: Translator,
    parameters: Sequence[dict],
    texts: Sequence[str],
    references: Sequence[str],
    language: str | None,
    report: Callable[[int], None],
) -> Evaluation:
    """Translates the texts and scores the best translation of each; training validates with it too.

    Args:
      language: as in `bleu.score`.
      report: as in `Translator.translate`.
    """
    began = time.perf_counter()
    best = [found[0] for found in translator.translate(parameters, texts, 1, report)]
    seconds = time.perf_counter() - began
    hypotheses = [translation.text for translation in best]
    tokens = sum(len(translation.tokens) + 1 for translation in best)
    return Evaluation(hypotheses, bleu.score(hypotheses, references, language), seconds, tokens)
