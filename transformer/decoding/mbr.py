"""Minimum Bayes risk decoding: the candidate with the highest expected utility.

All candidates are also the pseudo-references: the expected utility of a candidate is the weighted
mean of its sentence scores by each of them. Samples have equal weights, so a text that is drawn
twice counts twice (Eikema and Aziz 2022). The weights of the hypotheses of a beam search are their
probabilities (Kumar and Byrne 2004).
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Num

from transformer.config.types import Config
from transformer.decoding.beam_search import Models, SearchResult, SourceBatch
from transformer.decoding.sampling import sample
from transformer.decoding.translation import Translation, different_texts


def draw_candidates(
    models: Models, sentences: SourceBatch, decoding_config: Config, n_best: int
) -> SearchResult:
    """Returns samples that depend only on the source: all lines have the same random numbers."""
    sentences = sentences._replace(lines=jnp.zeros_like(sentences.limits))
    return sample(models, sentences, decoding_config, n_best)


def rank_texts(
    translations: list[Translation], decoding_config: Config, samples: bool
) -> list[Translation]:
    """Returns the different texts of samples, or of a beam, by expected utility."""
    candidates = different_texts(translations)
    weights = weights_of(translations, candidates, samples)
    utilities = UTILITIES[decoding_config.mbr_utility]([candidate.text for candidate in candidates])
    return rank(candidates, weights, utilities, decoding_config.mbr_utility)


def weights_of(
    translations: list[Translation], candidates: list[Translation], samples: bool
) -> Num[np.ndarray, " N"]:
    """Returns the weight of each candidate as a pseudo-reference.

    `candidates` are the different texts of the translations. The weight is the number of samples
    with the text, or the probability relative to the most likely candidate.
    """
    if samples:
        counts = Counter(translation.text for translation in translations)
        return np.array([counts[candidate.text] for candidate in candidates])
    log_p = np.array([candidate.log_probability for candidate in candidates])
    return np.exp(log_p - log_p.max())


def rank(
    candidates: list[Translation],
    weights: Num[np.ndarray, " N"],
    utilities: Float[np.ndarray, "N N"],
    utility: str,
) -> list[Translation]:
    """Returns the candidates by expected utility, which is their score; the first wins a tie.

    utilities[i, j] is the score of candidate i by the pseudo-reference j, and `utility` its name.
    """
    expected = utilities @ (weights / weights.sum())
    kind = f"expected_{utility}"
    scored = [
        dataclasses.replace(candidate, score=score, score_kind=kind)
        for candidate, score in zip(candidates, expected.tolist(), strict=True)
    ]

    # Scores that differ only by the order of sums are a tie.
    return sorted(scored, key=lambda candidate: -round(candidate.score, 9))


def chrf(texts: Sequence[str]) -> Float[np.ndarray, "N N"]:
    """Returns chrF of each text (row) by each reference (column).

    It equals `CHRF().sentence_score` of sacreBLEU.
    """
    from sacrebleu.metrics import CHRF  # here and below, since all decoding imports this module

    characters = ["".join(text.split()) for text in texts]

    # The mean precision over the orders that both texts have n-grams of.
    precision, orders = np.zeros((2, len(texts), len(texts)))
    for counts, shared in count_ngrams(characters, CHRF.CHAR_ORDER):
        precision += shared / np.maximum(counts, 1)[:, None]
        orders += (counts > 0)[:, None] & (counts > 0)
    precision /= np.maximum(orders, 1)

    # The precision of a text by a reference is the recall of the reference by the text.
    recall = precision.T
    factor = CHRF.BETA**2
    denominator = np.maximum(factor * precision + recall, np.finfo(float).tiny)
    return 100 * (1 + factor) * precision * recall / denominator


def bleu(texts: Sequence[str]) -> Float[np.ndarray, "N N"]:
    """Returns BLEU of each text (row) by each reference (column).

    It equals `BLEU(effective_order=True).sentence_score` of sacreBLEU.
    """
    from sacrebleu.metrics import BLEU

    metric = BLEU(effective_order=True)
    tokens = [tuple(metric.tokenizer(text.rstrip()).split()) for text in texts]
    lengths = np.array([len(text) for text in tokens])
    log_p, halvings, has_match = np.zeros((3, len(texts), len(texts)))
    for counts, shared in count_ngrams(tokens, metric.max_ngram_order):
        # NIST's smoothing: the n-th order without a match counts 1 / 2^n matches.
        halvings += shared == 0
        has_match += shared
        matches = np.where(shared == 0, 0.5**halvings, shared)
        precision = matches / np.maximum(counts, 1)[:, None]
        log_p += np.where(counts[:, None] > 0, np.log(100 * precision), 0.0)

    # Effective order: the mean of the orders that the text has n-grams of.
    log_p /= np.clip(lengths, 1, metric.max_ngram_order)[:, None]
    log_brevity = np.minimum(1 - lengths / np.maximum(lengths, 1)[:, None], 0.0)
    return np.where(has_match, np.exp(log_brevity + log_p), 0.0)


def count_ngrams(
    rows: Sequence[str | tuple[str, ...]], order: int
) -> Iterator[tuple[Int[np.ndarray, " N"], Int[np.ndarray, "N N"]]]:
    """Yields the numbers of n-grams of each row, and of each pair of rows, for n up to `order`."""
    for n in range(1, order + 1):
        # Each different n-gram has an id. occurrences[i, id] counts it in row i.
        ids = {}
        ngrams = [
            [ids.setdefault(row[i : i + n], len(ids)) for i in range(len(row) - n + 1)]
            for row in rows
        ]
        occurrences = np.array(
            [np.bincount(np.array(row, int), minlength=len(ids)) for row in ngrams]
        )
        shared = [np.minimum(row, occurrences).sum(axis=1) for row in occurrences]
        yield occurrences.sum(axis=1), np.array(shared)


# The utilities of `decoding.mbr_utility`: functions from N texts to the scores of each by each.
# None: the command of `decoding.scorer`, which `ScoredMbrDecoder` runs.
UTILITIES: dict[str, Any] = {"chrf": chrf, "bleu": bleu, "scorer": None}
