"""Metrics of any subset of sentences, from the sufficient statistics of each sentence.

Statistics add up over sentences, so a bootstrap resample does not read the text again. sacreBLEU does the same with
private functions; this module calls only public ones. The scores equal sacreBLEU's.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Num
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.helpers import extract_all_char_ngrams

from transformer.decoding.bleu import METRICS, Language, make_bleu

REFERENCE_LENGTH = 1  # the column of BLEU's statistics with the reference length in tokens
Statistics = Callable[[Sequence[str], Sequence[str]], Num[np.ndarray, "sentences numbers"]]


class AdditiveMetric(NamedTuple):
    """A metric that follows from sums of sufficient statistics over sentences.

    statistics(hypotheses, references): the statistics of each sentence, (sentences, numbers).
    score(sums): the metric for sums over sentences, (..., numbers) -> (...).
    """

    statistics: Statistics
    score: Callable[[Num[np.ndarray, "*B numbers"]], Float[np.ndarray, "*B"]]


def additive_metrics(language: Language, names: Sequence[str] = ()) -> dict[str, AdditiveMetric]:
    """Returns the metrics whose differences are tested: `bleu`, `chrf`, and the named ones that are means."""
    means = [name for name in names if METRICS[name].is_mean]
    return {
        "bleu": AdditiveMetric(_bleu_statistics(language.tokenizer), _bleu_score),
        "chrf": AdditiveMetric(_chrf_statistics, _chrf_score),
        **{name: AdditiveMetric(_mean_statistics(name, language), _mean) for name in means},
    }


def _bleu_statistics(tokenizer: str) -> Statistics:
    metric = make_bleu(tokenizer)
    metric.effective_order = True  # does not change the statistics; avoids a warning for each sentence

    def statistics(hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
        pairs = zip(hypotheses, references, strict=True)
        scores = [metric.sentence_score(hypothesis, [reference]) for hypothesis, reference in pairs]
        return np.array([[score.sys_len, score.ref_len, *score.counts, *score.totals] for score in scores])

    return statistics


def _mean_statistics(name: str, language: Language) -> Statistics:
    def statistics(hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
        pairs = zip(hypotheses, references, strict=True)
        scores = [METRICS[name].compute([hypothesis], [[reference]], language) for hypothesis, reference in pairs]
        return np.array([[value, 1] for value, _ in scores])

    return statistics


def _mean(sums: Num[np.ndarray, "*B 2"]) -> Float[np.ndarray, "*B"]:
    return sums[..., 0] / sums[..., 1]


def _bleu_score(sums: Num[np.ndarray, "*B numbers"]) -> Float[np.ndarray, "*B"]:
    def score(row: np.ndarray) -> float:
        lengths, counts, totals = row[:2], *np.split(row[2:], 2)
        return BLEU.compute_bleu(counts, totals, *map(int, lengths), smooth_method="exp").score

    return np.apply_along_axis(score, -1, sums)


def _chrf_statistics(hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """Returns for each order the number of n-grams in the hypothesis, in the reference and in common."""
    rows = []
    for pair in zip(hypotheses, references, strict=True):
        row: list[int] = []
        for hypothesis, reference in zip(
            *(extract_all_char_ngrams(text, CHRF.CHAR_ORDER) for text in pair), strict=True
        ):
            row += [hypothesis.total() if reference else 0, reference.total(), (hypothesis & reference).total()]
        rows.append(row)
    return np.array(rows)


def _chrf_score(sums: Num[np.ndarray, "*B numbers"]) -> Float[np.ndarray, "*B"]:
    """Returns the F score of the mean precision and the mean recall over the orders that both texts have."""
    hypothesis, reference, common = (sums[..., i::3] for i in range(3))
    present = (hypothesis > 0) & (reference > 0)
    orders = np.maximum(present.sum(-1), 1).astype(sums.dtype)
    # Summed from the first order on, as sacreBLEU does, for the same rounding.
    precision, recall = (
        np.cumsum(np.where(present, common / np.maximum(total, 1), 0), axis=-1)[..., -1] / orders
        for total in (hypothesis, reference)
    )
    factor = CHRF.BETA**2
    divisor = factor * precision + recall
    return 100 * ((1 + factor) * precision * recall / np.where(divisor > 0, divisor, 1))
