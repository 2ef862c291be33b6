"""Reranking of the hypotheses of a search by other models (noisy channel: Yee et al. 2019, Ng et al. 2019).

The score of a hypothesis is (log p(y|x) + sum of weight * log p of each other model) / the length penalty of the search.
A model of the other direction has log p(x|y), a language model log p(y). Texts are tokenized again for each model.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from absl import logging

from transformer.decoding.batches import DeviceModels, Replicas
from transformer.decoding.forced_decoding import is_scorable, longest_text, score_pairs
from transformer.decoding.lengths import LENGTH_PENALTIES
from transformer.decoding.text_decoder import TextDecoder
from transformer.decoding.translation import Translation


@dataclass(frozen=True)
class Scorer:
    """A model and the weight of its log-probabilities. arrange(source, hypothesis): the pair of texts that it reads."""

    workdir: str
    weight: float
    arrange: Callable[[str, str], tuple[str, str]]
    models: DeviceModels
    parameters: Replicas

    def log_probabilities(self, texts: Sequence[str], found: Sequence[Sequence[Translation]]) -> list[list[float]]:
        """Returns the log-probability of each hypothesis of each text, in nats.

        Those of a text are 0 if it or one of its hypotheses is too long for the model, which a warning says.
        """
        rows = [[self.arrange(text, x.text) for x in known] for text, known in zip(texts, found, strict=True)]
        longest = longest_text(self.models.config)
        scored = [i for i, row in enumerate(rows) if all(is_scorable(self.models.tokenizer, x, longest) for x in row)]
        if len(scored) < len(rows):
            message = "%s: does not rerank %d of %d texts, which are too long for it."
            logging.warning(message, self.workdir, len(rows) - len(scored), len(rows))
        scores = iter(score_pairs(self.models, self.parameters, [pair for i in scored for pair in rows[i]]))
        log_p = [[0.0] * len(row) for row in rows]
        for i in scored:
            log_p[i] = [next(scores).log_probability for _ in rows[i]]
        return log_p


@dataclass(eq=False)
class RerankingDecoder(TextDecoder):
    """A decoder that finds `beam_size` hypotheses of each text and returns the best by the scores of all models."""

    scorers: Sequence[Scorer] = ()

    def translate(
        self, parameters: Replicas, texts: Sequence[str], n_best: int = 1, *arguments: Any, **options: Any
    ) -> list[list[Translation]]:
        """Returns what `TextDecoder.translate` does, in the order of the reranked scores."""
        self.check_n_best(n_best)
        found = super().translate(parameters, texts, self.config.beam_size, *arguments, **options)
        totals = [[x.log_probability for x in known] for known in found]
        for scorer in self.scorers:
            for row, log_p in zip(totals, scorer.log_probabilities(texts, found), strict=True):
                row[:] = [total + scorer.weight * x for total, x in zip(row, log_p, strict=True)]
        return [self._sort(*pair)[:n_best] for pair in zip(found, totals, strict=True)]

    def compilations(self, parameters: tuple[dict, ...], lengths: Iterable[int], n_best: int = 1) -> list[Callable]:
        return super().compilations(parameters, lengths, self.config.beam_size)

    def _sort(self, translations: list[Translation], totals: list[float]) -> list[Translation]:
        penalty = functools.partial(LENGTH_PENALTIES[self.config.length_penalty_form], alpha=self.config.length_penalty)
        scored = [
            dataclasses.replace(x, score=total / penalty(len(x.tokens)), score_kind="reranked") if x.tokens else x
            for x, total in zip(translations, totals, strict=True)
        ]
        return sorted(scored, key=lambda translation: -translation.score)
