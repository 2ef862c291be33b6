"""The confidence in translations and their words, from the probabilities of the model itself.

The features of a translation y of x are in nats (Fomicheva et al. 2020, "Unsupervised Quality
Estimation for Neural Machine Translation"):

- mean: TP = 1/T sum of log p(y_t | y_<t, x) over its T tokens, EOS included
- lowest: the least log p(y_t | y_<t, x)
- mean_of_passes, deviation_of_passes: mean and standard deviation of TP in passes with dropout or,
  without such passes, over the models of an ensemble

`scripts.calibrate` fits the weights with which a logistic regression turns them into the
probability that the sentence chrF of y is at least a threshold.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from transformer.data.corpus.annotations import word_starts
from transformer.data.tokenizers.vocabulary import Vocabulary
from transformer.decoding.batches import DeviceModels, Replicas
from transformer.decoding.forced_decoding import map_rows, score_passes
from transformer.decoding.text_decoder import TextDecoder
from transformer.decoding.translation import Translation, Translations

Features = Mapping[str, Float[np.ndarray, " N"]]  # values of N translations, by name
Weights = Mapping[str, float]  # of each feature, and "intercept"


class Confidence(NamedTuple):
    """The confidence in a translation and in each of its words.

    confidence: the probability that the sentence chrF is at least the threshold of the calibration.
      None if the translation has no tokens.
    word_confidences: the probability of each word given the source and the words before it, without
      calibration: the product over its tokens.
    """

    confidence: float | None
    words: list[str]
    word_confidences: list[float]


class Calibration(NamedTuple):
    """The part of a file by `scripts.calibrate` that confidences depend on."""

    weights: Weights
    threshold: float
    dropout_passes: int


def estimate(
    calibration: Calibration,
    decoder: TextDecoder,
    parameters: Replicas,
    texts: Sequence[str],
    translations: Translations,
    first_line: int = 1,
) -> list[list[Confidence]]:
    """Returns the confidence in each translation of each text."""
    # A text without an output may be one that the vocabulary cannot encode.
    readable = [
        text if any(one.tokens for one in row) else ""
        for text, row in zip(texts, translations, strict=True)
    ]
    # All translations are scored together, in batches of similar length.
    pairs = []
    sources = decoder.source_tokens(readable, first_line)
    for source, row in zip(sources, translations, strict=True):
        pairs += [(source, one) for one in row if one.tokens]
    features = compute_features(decoder, parameters, pairs, calibration.dropout_passes)
    confidences = iter(probabilities(calibration.weights, features).tolist())

    def describe(one: Translation) -> Confidence:
        words = split_words(one, decoder.tokenizer.target)
        return Confidence(next(confidences) if one.tokens else None, *words)

    return [[describe(one) for one in row] for row in translations]


def compute_features(
    models: DeviceModels,
    parameters: Replicas,
    pairs: Sequence[tuple[Sequence[int], Translation]],
    dropout_passes: int,
) -> Features:
    """Returns the features of translations, each with the tokens of its source."""
    log_p = [np.array(one.token_log_probabilities) for _, one in pairs]
    features = {"mean": [row.mean() for row in log_p], "lowest": [row.min() for row in log_p]}
    if dropout_passes or len(models.graphs) > 1:
        score = models.jit(score_passes, dropout_passes=dropout_passes)
        sources = [list(source) for source, _ in pairs]
        targets = [list(one.tokens) for _, one in pairs]
        rows = map_rows(models, score, parameters, [sources, targets])
        means = [row.mean(axis=0) for row in rows]  # TP in each pass
        features["mean_of_passes"] = [row.mean() for row in means]
        features["deviation_of_passes"] = [row.std() for row in means]
    return {name: np.array(values, float) for name, values in features.items()}


def probabilities(weights: Weights, features: Features) -> Float[np.ndarray, " N"]:
    """Returns the probabilities of a logistic regression."""
    logits = weights["intercept"] + sum(weights[name] * features[name] for name in features)
    return 0.5 + 0.5 * np.tanh(0.5 * logits)  # the logistic function, without overflow


def split_words(translation: Translation, vocabulary: Vocabulary) -> tuple[list[str], list[float]]:
    """Returns the words of a translation with their probabilities, the products over tokens.

    EOS is not a part of a word.
    """
    tokens = list(translation.tokens[:-1])
    # Some vocabularies do not mark the first word.
    starts = {0, *np.flatnonzero(_word_starts_of(vocabulary)[tokens]).tolist()}
    spans = [slice(*span) for span in pairwise(sorted({*starts, len(tokens)}))]
    words = vocabulary.decode([tokens[span] for span in spans])
    return words, [math.exp(sum(translation.token_log_probabilities[span])) for span in spans]


@functools.lru_cache(maxsize=8)
def _word_starts_of(vocabulary: Vocabulary) -> Bool[np.ndarray, " V"]:
    return word_starts(vocabulary.pieces)
