"""Measures of a sentence pair: the loss of trained models, the ratio of lengths, and the share of copied words."""

import collections
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from transformer.api import Model

CHUNK = 4096  # pairs that are scored together


class Measured(NamedTuple):
    """A pair with its measures.

    Attributes:
      number: of the pair in its corpus, from 1.
      loss: -log p(target | source) in nats per target token, end-of-sentence included; NaN if a side is too long.
      reverse_loss: -log p(source | target) per source token, by a model of the other direction; None without one.
      length_ratio: words of the longer side per word of the shorter one; infinite if only one side is empty.
      copied: the share of the target's words that the source has too.
    """

    number: int
    source: str
    target: str
    loss: float
    reverse_loss: float | None
    length_ratio: float
    copied: float

    @property
    def mean_loss(self) -> float:
        """The mean of the losses, by which pairs are ranked; -inf if a side is too long for a model.

        Pairs with -inf are not ranked.
        """
        losses = [loss for loss in (self.loss, self.reverse_loss) if loss is not None]
        mean = sum(losses) / len(losses)
        return mean if math.isfinite(mean) else -math.inf


def measure(pairs: Sequence[tuple[str, str]], model: Model, reverse: Model | None) -> Iterator[Measured]:
    """Yields the pairs with their measures, in order."""
    for begin in range(0, len(pairs), CHUNK):
        chunk = pairs[begin : begin + CHUNK]
        losses = token_losses(model, chunk)
        reverse_losses = token_losses(reverse, [pair[::-1] for pair in chunk]) if reverse else [None] * len(chunk)
        for i, (pair, loss, reverse_loss) in enumerate(zip(chunk, losses, reverse_losses, strict=True), start=begin):
            yield Measured(i + 1, *pair, loss, reverse_loss, length_ratio(*pair), copied(*pair))


def token_losses(model: Model, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Returns the loss of each pair per target token; NaN for a pair that is too long for the model."""
    readable = [i for i, pair in enumerate(pairs) if model.can_score(pair)]
    losses = [math.nan] * len(pairs)
    for i, scored in zip(readable, model.score([pairs[i] for i in readable]), strict=True):
        losses[i] = -scored.log_probability / len(scored.tokens)
    return losses


def length_ratio(source: str, target: str) -> float:
    short, long = sorted((len(source.split()), len(target.split())))
    return 1.0 if not long else long / short if short else math.inf


def copied(source: str, target: str) -> float:
    words, others = collections.Counter(target.split()), collections.Counter(source.split())
    return (words & others).total() / max(words.total(), 1)
