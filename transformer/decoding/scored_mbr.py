"""Minimum Bayes risk decoding whose utility is the command of `decoding.scorer`."""

from collections import Counter
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
        triples = [
            (text, reference.text, candidate.text)
            for text, row in zip(texts, candidates, strict=True)
            for candidate in row
            for reference in row
        ]
        columns = zip(*triples, strict=True)
        fields = dict(zip(("source", "reference", "hypothesis"), columns, strict=True))
        scores = iter(run_scorer(self.config.scorer, fields))

        translations = []
        for row, different in zip(rows, candidates, strict=True):
            count = len(different)
            utilities = np.array([next(scores) for _ in range(count**2)]).reshape(count, count)
            weights = self._weights(row, different)
            ranked = mbr.rank(different, weights, utilities, self.config.mbr_utility)
            translations.append(ranked[:n_best])
        return translations

    def _weights(self, row: list[Translation], different: list[Translation]) -> np.ndarray:
        """Returns the weight of each pseudo-reference, as `mbr` has it."""
        if self.strategy.samples:
            counts = Counter(translation.text for translation in row)
            return np.array([counts[candidate.text] for candidate in different])
        return mbr.probabilities(different)
