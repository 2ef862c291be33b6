"""Minimum Bayes risk decoding whose utility is the command of `decoding.scorer`."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transformer.decoding import mbr
from transformer.decoding.batches import Replicas
from transformer.decoding.control.controlled_decoder import ControlledDecoder
from transformer.decoding.scorer import run_scorer
from transformer.decoding.strategies import check_n_best
from transformer.decoding.translation import Translation, different_texts


@dataclass(eq=False)
class ScoredMbrDecoder(ControlledDecoder):
    """A decoder whose command scores each candidate by each other one, once for all texts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # The candidates of a text are ranked after all of them are scored.
        self.strategy = self.strategy._replace(select=lambda translations, _: translations)

    def translate(
        self,
        parameters: Replicas,
        texts: Sequence[str],
        n_best: int = 1,
        *arguments: Any,
        **options: Any,
    ) -> list[list[Translation]]:
        """Returns what `ControlledDecoder.translate` does, by expected utility."""
        check_n_best(self.config, n_best)
        size = self.config[self.strategy.size]
        rows = super().translate(parameters, texts, size, *arguments, **options)
        candidates = [different_texts(row) for row in rows]

        # All pairs of a candidate and a pseudo-reference, for all texts.
        fields = {"source": [], "reference": [], "hypothesis": []}
        for text, row in zip(texts, candidates, strict=True):
            for candidate, reference in itertools.product(row, row):
                fields["source"].append(text)
                fields["reference"].append(reference.text)
                fields["hypothesis"].append(candidate.text)
        scores = iter(run_scorer(self.config.scorer, fields))

        translations = []
        for row, different in zip(rows, candidates, strict=True):
            count = len(different)
            utilities = np.array([next(scores) for _ in range(count**2)]).reshape(count, count)
            weights = mbr.weights_of(row, different, self.strategy.samples)
            ranked = mbr.rank(different, weights, utilities, self.config.mbr_utility)
            translations.append(ranked[:n_best])
        return translations
