"""Metrics of any subset of sentences, computed from sums of the sentences' sufficient statistics.

So resampling does not tokenize or compare any text again.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

import numpy as np
from jaxtyping import Float, Num
from sacrebleu.metrics import CHRF
from sacrebleu.metrics.base import Metric

from transformer.decoding.bleu import Language, make_bleu
from transformer.decoding.metrics import METRICS
from transformer.decoding.trees import bracket_scores
from transformer.support.errors import UserError

REFERENCE_LENGTH = 1  # the column of BLEU's statistics with the reference length in tokens


class AdditiveMetric(NamedTuple):
    """A metric that follows from sums of sufficient statistics over sentences.

    statistics(hypotheses, references): the statistics of each sentence, (sentences, numbers).
    score(sums): the metric for sums over sentences, (..., numbers) -> (...).
    """

    statistics: Callable[[Sequence[str], Sequence[str]], Num[np.ndarray, "sentences numbers"]]
    score: Callable[[Num[np.ndarray, "*B numbers"]], Float[np.ndarray, "*B"]]


def given_statistics(
    values: Sequence[float], are_sentences: Sequence[bool]
) -> Num[np.ndarray, "sentences numbers"]:
    """Returns the statistics of the mean of given scores, without lines that are no sentences."""
    weights = np.array(are_sentences, float)
    return np.stack([np.array(values) * weights, weights], axis=1)


def _mean(sums: Num[np.ndarray, "*B numbers"]) -> Float[np.ndarray, "*B"]:
    # A resample may have no sentence, only blank lines.
    return sums[..., 0] / np.maximum(sums[..., 1], 1)


def _no_statistics(hypotheses: Sequence[str], references: Sequence[str]) -> NoReturn:
    raise AssertionError("the scores are given")


# The mean of scores that another program has computed. `given_statistics` has its statistics.
GIVEN_SCORES = AdditiveMetric(_no_statistics, _mean)


def additive_metrics(language: Language, names: Sequence[str] = ()) -> dict[str, AdditiveMetric]:
    """Returns the metrics with tested differences: `bleu`, `chrf`, and the means among `names`.

    For trees also `bracket_f1`.

    Raises UserError if the tokenizer that computed the scores is not installed.
    """
    bleu = make_bleu(language.tokenizer)
    # `make_bleu` uses another tokenizer if this one is not installed.
    if not bleu.tokenizer_signature.startswith(language.tokenizer):
        package = f"sacrebleu[{language.tokenizer.removesuffix('-mecab')}]"
        raise UserError(
            f"the scores need sacreBLEU's tokenizer {language.tokenizer}; pip install '{package}'"
        )
    metrics = {"bleu": _corpus_metric(bleu), "chrf": _corpus_metric(CHRF())}
    if language.target_form == "tree":
        metrics["bracket_f1"] = AdditiveMetric(bracket_scores.statistics, bracket_scores.f1)
    return metrics | {name: _mean_metric(name, language) for name in names if METRICS[name].is_mean}


def _corpus_metric(metric: Metric) -> AdditiveMetric:
    # sacreBLEU's own paired bootstrap calls these methods; public ones would read the text again.
    def statistics(hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
        return np.array(metric._extract_corpus_statistics(hypotheses, [references]))

    def score(sums: np.ndarray) -> np.ndarray:
        return np.apply_along_axis(
            lambda row: metric._compute_score_from_stats(row).score, -1, sums
        )

    return AdditiveMetric(statistics, score)


def _mean_metric(name: str, language: Language) -> AdditiveMetric:
    def statistics(hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
        rows = []
        for hypothesis, reference in zip(hypotheses, references, strict=True):
            value, _ = METRICS[name].compute([hypothesis], [[reference]], language)
            # The statistics of a mean are the sum of the scores and the number of sentences.
            rows.append([value, 1])
        return np.array(rows)

    return AdditiveMetric(statistics, _mean)
