"""Measures of a sentence pair: scores of trained models, the ratio of lengths, and the fraction of copied words."""

import collections
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from transformer.api import Model

CHUNK = 2048  # pairs that are scored together


class Scores(NamedTuple):
    """A model's scores of a pair, in nats per target token; NaN if a side is too long. Tokens include end-of-sentence.

    The loss is -log p(target | source). The PMI is log p(target | source) - log p(target | empty source), an estimate
    of the pointwise mutual information, which is lower for a target that is no translation of its source.
    """

    loss: float
    pmi: float
    tokens: int


class Measured(NamedTuple):
    """A pair with its measures.

    Attributes:
      number: of the pair in its corpus, from 1.
      scores: of a model of the pair's direction, and of one of the other direction if there is one.
      length_ratio: words of the longer side per word of the shorter one; infinite if only one side is empty.
      copied: the fraction of the target's words that the source has too.
    """

    number: int
    source: str
    target: str
    scores: tuple[Scores, ...]
    length_ratio: float
    copied: float

    @property
    def pmi(self) -> float:
        """The mean over the directions, by which pairs are ranked; NaN if a side is too long for a model."""
        return statistics.mean(scores.pmi for scores in self.scores)


def measure(
    pairs: Sequence[tuple[str, str]], model: Model, reverse: Model | None, report: Callable[[int], None]
) -> Iterator[Measured]:
    """Yields the pairs with their measures, in order. Calls `report` with the number of pairs that it has scored."""
    for begin in range(0, len(pairs), CHUNK):
        chunk = pairs[begin : begin + CHUNK]
        scores = [score(model, chunk)]
        if reverse is not None:
            scores.append(score(reverse, [pair[::-1] for pair in chunk]))
        report(len(chunk))
        for number, (pair, *pair_scores) in enumerate(zip(chunk, *scores, strict=True), start=begin + 1):
            yield Measured(number, *pair, tuple(pair_scores), length_ratio(*pair), copied(*pair))


def score(model: Model, pairs: Sequence[tuple[str, str]]) -> list[Scores]:
    readable = [i for i, pair in enumerate(pairs) if model.can_score(pair)]
    scores = [Scores(math.nan, math.nan, 0)] * len(pairs)
    with_source = model.score([pairs[i] for i in readable])
    without_source = model.score([("", pairs[i][1]) for i in readable])
    for i, conditional, prior in zip(readable, with_source, without_source, strict=True):
        gain = conditional.log_probability - prior.log_probability
        tokens = len(conditional.tokens)
        scores[i] = Scores(-conditional.log_probability / tokens, gain / tokens, tokens)
    return scores


def length_ratio(source: str, target: str) -> float:
    short, long = sorted((len(source.split()), len(target.split())))
    return 1.0 if not long else long / short if short else math.inf


def copied(source: str, target: str) -> float:
    words = collections.Counter(target.split())
    return (words & collections.Counter(source.split())).total() / max(words.total(), 1)
