"""The scores of systems: of each seed, by sentence length, and of single sentences."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sacrebleu.metrics import CHRF
from sacrebleu.metrics.base import Metric

from scripts.comparison.systems import System
from transformer.decoding import bleu
from transformer.errors import UserError

BINS = 6  # of sentence lengths, at most
BIN_SENTENCES = 30  # in each, at least about so many: BLEU of fewer says little


@dataclass(frozen=True)
class Scored:
    """A system with the scores of its seeds, and for "bleu" and "chrf" the statistics they come from.

    statistics: (seeds, sentences, numbers), by which sacreBLEU scores any choice of the sentences.
    """

    system: System
    scores: tuple[bleu.Scores, ...]
    statistics: dict[str, np.ndarray]

    def of_seeds(self, name: str) -> np.ndarray:
        """The score of each seed: (seeds,)."""
        return np.array([getattr(each, name) for each in self.scores])


@dataclass(frozen=True)
class Bin:
    """Sentences with references of `shortest` to `longest` tokens, and each system's BLEU, the mean over its seeds."""

    shortest: int
    longest: int
    sentences: int
    bleu: tuple[float, ...]


def make_metrics(language: str | None) -> dict[str, Metric]:
    """Those of `bleu.score` whose differences are tested."""
    return {"bleu": bleu.make_bleu(language), "chrf": CHRF()}


def score(system: System, references: Sequence[str], language: str | None, metrics: dict[str, Metric]) -> Scored:
    """Raises UserError if an evaluation's scores are not those of its hypotheses."""
    every = [evaluation.hypotheses for evaluation in system.evaluations]
    scores = tuple(bleu.score(hypotheses, references, language) for hypotheses in every)
    for evaluation, found in zip(system.evaluations, scores, strict=True):
        saved = evaluation.saved
        if saved["bleu_signature"] == found.bleu_signature and abs(saved["bleu"] - found.bleu) > 0.01:
            raise UserError(
                f"{evaluation.path}: says BLEU is {saved['bleu']:.2f}, but that of its hypotheses is {found.bleu:.2f}; "
                "run transformer.evaluate again"
            )
    statistics = {
        name: np.array([metric._extract_corpus_statistics(hypotheses, [references]) for hypotheses in every])
        for name, metric in metrics.items()
    }
    return Scored(system, scores, statistics)


def bleu_by_length(metric: Metric, systems: Sequence[Scored]) -> list[Bin]:
    """In bins of about as many sentences each. Lengths are in BLEU's own tokens, so that any language has them."""
    lengths = systems[0].statistics["bleu"][0, :, 1]
    count = min(BINS, max(1, len(lengths) // BIN_SENTENCES))
    longest = np.unique(np.quantile(lengths, np.arange(1, count + 1) / count, method="inverted_cdf"))
    shortest = [lengths.min(), *(longest[:-1] + 1)]
    bins = []
    for low, high in zip(shortest, longest, strict=True):
        inside = (lengths >= low) & (lengths <= high)
        sums = [system.statistics["bleu"][:, inside].sum(1) for system in systems]
        means = tuple(float(np.mean([_score(metric, seed) for seed in seeds])) for seeds in sums)
        bins.append(Bin(int(low), int(high), int(inside.sum()), means))
    return bins


def score_sentences(metric: Metric, statistics: np.ndarray) -> np.ndarray:
    """The score of each sentence by itself, mean over seeds: (sentences,)."""
    return np.array([[_score(metric, sentence) for sentence in seed] for seed in statistics]).mean(0)


def most_different(first: np.ndarray, other: np.ndarray, count: int) -> list[int]:
    """Numbers of the sentences whose scores, (sentences,), differ most, the first of them most."""
    sizes = np.abs(other - first)
    return [int(number) for number in np.argsort(-sizes, kind="stable")[:count] if sizes[number] > 0]


def _score(metric: Metric, statistics: np.ndarray) -> float:
    return metric._compute_score_from_stats(statistics.tolist()).score
