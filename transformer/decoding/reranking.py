"""Reranking of the hypotheses of a search by other models (noisy channel: Yee et al. 2019, Ng et
al. 2019).

A hypothesis y has the score of the search + sum of weight * log p / S, with S source tokens. Yee et
al. divide by S so that a longer output gains nothing. A model of the other direction has log
p(x|y), a language model log p(y). Texts are tokenized again for each model.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from absl import logging
from jaxtyping import Float

from transformer.decoding.batches import DeviceModels, Replicas
from transformer.decoding.control.controlled_decoder import ControlledDecoder
from transformer.decoding.forced_decoding import is_scorable, score_pairs
from transformer.decoding.strategies import check_n_best
from transformer.decoding.translation import Translation


@dataclass(frozen=True)
class Scorer:
    """A model and the weight of its log-probabilities. arrange(source, hypothesis): the pair of
    texts that it reads.
    """

    workdir: str
    weight: float
    arrange: Callable[[str, str], tuple[str, str]]
    models: DeviceModels
    parameters: Replicas

    def log_probabilities(
        self, texts: Sequence[str], hypotheses: Sequence[Sequence[Translation]]
    ) -> list[list[float]]:
        """Returns the log-probability of each hypothesis of each text, in nats.

        Those of a text are 0 if it or one of its hypotheses is too long for the model, which a
        warning says.
        """
        rows = [
            [self.arrange(text, x.text) for x in known]
            for text, known in zip(texts, hypotheses, strict=True)
        ]
        scored = [
            i for i, row in enumerate(rows) if all(is_scorable(self.models, pair) for pair in row)
        ]
        if len(scored) < len(rows):
            message = "%s: does not rerank %d of %d texts, which are too long for it."
            logging.warning(message, self.workdir, len(rows) - len(scored), len(rows))
        scores = iter(
            score_pairs(self.models, self.parameters, [pair for i in scored for pair in rows[i]])
        )
        log_p = [[0.0] * len(row) for row in rows]
        for i in scored:
            log_p[i] = [next(scores).log_probability for _ in rows[i]]
        return log_p


@dataclass(eq=False)
class RerankingDecoder(ControlledDecoder):
    """A decoder that finds `beam_size` hypotheses of each text and returns the best by the scores
    of all models.
    """

    scorers: Sequence[Scorer] = ()

    def translate(
        self,
        parameters: Replicas,
        texts: Sequence[str],
        n_best: int = 1,
        *arguments: Any,
        **options: Any,
    ) -> list[list[Translation]]:
        """Returns what `ControlledDecoder.translate` does, in the order of the reranked scores."""
        check_n_best(self.config, n_best)
        translations, weights = [], [1.0, *(scorer.weight for scorer in self.scorers)]
        for known, terms in zip(
            *self.hypotheses(parameters, texts, *arguments, **options), strict=True
        ):
            scores = weights @ terms
            order = np.argsort(-scores, kind="stable")[:n_best]
            best = [
                dataclasses.replace(known[i], score=float(scores[i]), score_kind="reranked")
                for i in order
            ]
            translations.append(best if known[0].tokens else known[:n_best])
        return translations

    def hypotheses(
        self, parameters: Replicas, texts: Sequence[str], *arguments: Any, **options: Any
    ) -> tuple[list[list[Translation]], list[Float[np.ndarray, "terms N"]]]:
        """Returns the N hypotheses of each text, and the terms of their scores: the search's, and
        each scorer's.
        """
        hypotheses = super().translate(
            parameters, texts, self.config.beam_size, *arguments, **options
        )
        log_p = [scorer.log_probabilities(texts, hypotheses) for scorer in self.scorers]
        lengths = [len(tokens) + 1 for tokens in self.tokenizer.encoders[0].encode(texts)]
        rows = zip(hypotheses, lengths, zip(*log_p, strict=True), strict=True)
        return hypotheses, [
            np.array([[x.score for x in known], *np.array(log_p) / S]) for known, S, log_p in rows
        ]

    def compilations(
        self, parameters: Any, lengths: Iterable[int], n_best: int = 1, *options: Any
    ) -> list[Callable]:
        return super().compilations(parameters, lengths, self.config.beam_size, *options)
