"""Reranking of the hypotheses of a search by other models, and by commands.

The noisy channel of Yee et al. (2019) and Ng et al. (2019) is an example. A hypothesis y has the
score of the search + sum of weight * log p / S, with S source tokens. Yee et al. divide by S so
that a longer output gains nothing. A model of the other direction has log p(x|y), a language model
log p(y). Texts are tokenized again for each model. The scores of `decoding.scorer`, a command, are
not divided.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from absl import logging
from jaxtyping import Float

from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding import mbr
from transformer.decoding.batches import DeviceModels, Replicas
from transformer.decoding.control.controlled_decoder import ControlledDecoder
from transformer.decoding.forced_decoding import is_scorable, score_pairs
from transformer.decoding.scorer import FIELDS, run_scorer
from transformer.decoding.strategies import check_n_best
from transformer.decoding.translation import Translations, different_texts


class Scorer(NamedTuple):
    """A model and the weight of its log-probabilities.

    `arrange` returns the pair of texts that the model reads, given a source and a hypothesis.
    """

    workdir: str
    weight: float
    arrange: Callable[[str, str], tuple[str, str]]
    models: DeviceModels
    parameters: Replicas

    def terms(
        self,
        texts: Sequence[str],
        hypotheses: Translations,
        tokenizer: Tokenizer,
    ) -> list[Float[np.ndarray, " N"]]:
        """Returns log p / S of the hypotheses of each text, with S source tokens of the search.

        If a text or one of its hypotheses is too long for the model, all hypotheses of the text
        have 0. A warning gives the number of such texts.
        """
        # A text whose pairs do not all fit is left out.
        rows = [
            [self.arrange(text, hypothesis.text) for hypothesis in text_hypotheses]
            for text, text_hypotheses in zip(texts, hypotheses, strict=True)
        ]
        fits = [all(is_scorable(self.models, pair) for pair in row) for row in rows]
        if not all(fits):
            message = "%s: does not rerank %d of %d texts, which are too long for it."
            logging.warning(message, self.workdir, fits.count(False), len(rows))

        # All pairs are scored together, in batches of similar length.
        pairs = list(itertools.chain.from_iterable(itertools.compress(rows, fits)))
        scores = iter(score_pairs(self.models, self.parameters, pairs))
        lengths = [len(tokens) + 1 for tokens in tokenizer.encoders[0].encode(texts)]
        return [
            np.array([next(scores).log_probability if row_fits else 0.0 for _ in row]) / length
            for row, row_fits, length in zip(rows, fits, lengths, strict=True)
        ]


class CommandScorer(NamedTuple):
    """A command that scores translations without references, and the weight of its scores."""

    command: str
    weight: float

    def terms(
        self,
        texts: Sequence[str],
        hypotheses: Translations,
        tokenizer: Tokenizer,
    ) -> list[Float[np.ndarray, " N"]]:
        """Returns the scores of the hypotheses of each text. The command runs once."""
        sources = [text for text, row in zip(texts, hypotheses, strict=True) for _ in row]
        outputs = [one.text for row in hypotheses for one in row]
        scores = iter(run_scorer(self.command, {"source": sources, "hypothesis": outputs}))
        return [np.array([next(scores) for _ in row]) for row in hypotheses]


def with_output(hypotheses: Translations) -> list[int]:
    """Returns the indices of the texts for which the search found outputs.

    All other texts, such as blank ones, have only empty translations, which cannot be ranked.
    """
    return [i for i, row in enumerate(hypotheses) if row[0].tokens]


@dataclass(eq=False)
class RankingDecoder(ControlledDecoder):
    """Base class of decoders that rank all hypotheses of the texts of a call together."""

    def translate(
        self,
        parameters: Replicas,
        texts: Sequence[str],
        n_best: int = 1,
        *arguments: Any,
        **options: Any,
    ) -> Translations:
        """Returns what `ControlledDecoder.translate` does, in the order of `rank`."""
        check_n_best(self.decoding_config, n_best)
        hypotheses = self.find_hypotheses(parameters, texts, *arguments, **options)
        found = with_output(hypotheses)
        ranked = self.rank([texts[i] for i in found], [hypotheses[i] for i in found])
        for i, row in zip(found, ranked, strict=True):
            hypotheses[i] = row
        return [row[:n_best] for row in hypotheses]

    def find_hypotheses(
        self, parameters: Replicas, texts: Sequence[str], *arguments: Any, **options: Any
    ) -> Translations:
        """Returns all hypotheses of each text, in the order of the search."""
        size = self.decoding_config[self.strategy.size]
        return super().translate(parameters, texts, size, *arguments, **options)

    def rank(self, texts: Sequence[str], hypotheses: Translations) -> Translations:
        """Returns the hypotheses of each text with other scores, best first."""
        raise NotImplementedError

    def compilations(
        self, parameters: Any, lengths: Iterable[int], n_best: int = 1, *options: Any
    ) -> list[Callable]:
        size = self.decoding_config[self.strategy.size]
        return super().compilations(parameters, lengths, size, *options)


@dataclass(eq=False)
class RerankingDecoder(RankingDecoder):
    """A decoder that ranks the `beam_size` hypotheses of each text by the scores of all models."""

    scorers: Sequence[Scorer | CommandScorer] = ()

    def rank(self, texts: Sequence[str], hypotheses: Translations) -> Translations:
        """Returns the hypotheses of each text in the order of the reranked scores."""
        weights = [1.0, *(scorer.weight for scorer in self.scorers)]

        # The new score of a hypothesis is the weighted sum of its terms.
        ranked = []
        for row, terms in zip(hypotheses, self.terms(texts, hypotheses), strict=True):
            scores = weights @ terms
            ranked.append(
                [
                    dataclasses.replace(row[i], score=float(scores[i]), score_kind="reranked")
                    for i in np.argsort(-scores, kind="stable")
                ]
            )
        return ranked

    def terms(
        self, texts: Sequence[str], hypotheses: Translations
    ) -> list[Float[np.ndarray, "terms N"]]:
        """Returns the terms of the scores of the N hypotheses of each text.

        The first term is the score of the search, and then each scorer has one.
        """
        terms = [scorer.terms(texts, hypotheses, self.tokenizer) for scorer in self.scorers]
        search_scores = [np.array([one.score for one in row]) for row in hypotheses]
        return [np.stack(row) for row in zip(search_scores, *terms, strict=True)]


@dataclass(eq=False)
class ScoredMbrDecoder(RankingDecoder):
    """Minimum Bayes risk decoding whose utility is the command of `decoding.scorer`.

    The command scores each candidate by each other one, once for all texts.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        # The candidates of a text are ranked after all of them are scored.
        self.strategy = self.strategy._replace(select=lambda translations, _: translations)

    def rank(self, texts: Sequence[str], hypotheses: Translations) -> Translations:
        """Returns the different hypotheses of each text by expected utility."""
        candidates = list(map(different_texts, hypotheses))

        # All pairs of a candidate and a pseudo-reference, for all texts.
        rows = [
            (text, reference.text, candidate.text)
            for text, row in zip(texts, candidates, strict=True)
            for candidate, reference in itertools.product(row, row)
        ]
        columns = {field: [row[i] for row in rows] for i, field in enumerate(FIELDS)}
        scores = iter(run_scorer(self.decoding_config.scorer, columns))

        ranked = []
        for row, different in zip(hypotheses, candidates, strict=True):
            count = len(different)
            utilities = np.array([next(scores) for _ in range(count**2)]).reshape(count, count)
            weights = mbr.weights_of(row, different, self.strategy.samples)
            ranked.append(mbr.rank(different, weights, utilities, self.decoding_config.mbr_utility))
        return ranked
