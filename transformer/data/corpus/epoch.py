"""The pairs that an epoch reads, and in which segmentations.

An epoch reads each pair of a part of a mixture `weight` times. Where that is no whole number, it
reads the next pairs of an endless sequence of permutations of the part, so that after some epochs
all pairs have been read equally often.

With subword sampling, each epoch reads the training sentences in other segmentations (Kudo 2018,
Provilkov et al. 2020); the copies of a pair in one epoch have the same. The plan of an epoch is
made before its sentences are sampled, so it reserves the expected length and `MARGIN` standard
deviations. A longer sample is drawn again; after `ATTEMPTS` draws a sentence keeps its best
segmentation, which fits. For one corpus and `data.max_length` a sample is a function of (seed,
epoch, side, sentence), whatever the batch, thread or process.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int, Int32, Integer, UInt64

from transformer.data.corpus.annotations import Annotations, Sequences
from transformer.data.corpus.encoding import end_sentences
from transformer.data.tokenizers.tokenizer import Tokenizer

MARGIN = 1.0  # standard deviations above the expected length
ATTEMPTS = 4
# sentences of a side from which the expected length and its standard deviation are estimated
_SAMPLE = 2000
_NO_EPOCH = 1 << 32  # seeds the estimate

Chosen = Int[np.ndarray, " N"] | slice  # positions among the pairs of an epoch


def pairs_of_epoch(
    counts: Sequence[int], weights: Sequence[float], seed: int, epoch: int
) -> Int[np.ndarray, " M"]:
    """Returns the numbers of the pairs that an epoch reads, part after part.

    A pure function of its arguments.
    """
    drawn = []
    first = 0
    for part, (count, weight) in enumerate(zip(counts, weights, strict=True)):
        start, stop = (int(round(number * weight * count)) for number in (epoch, epoch + 1))
        for cycle in range(start // count, -(-stop // count)):
            begin = max(start - cycle * count, 0)
            end = min(stop - cycle * count, count)
            if end - begin == count:  # in the order of the corpus, without a permutation
                drawn.append(np.arange(first, first + count))
            else:
                permutation = np.random.default_rng([seed, part, cycle]).permutation(count)
                drawn.append(first + np.sort(permutation[begin:end]))
        first += count
    return np.concatenate(drawn)


@dataclass(frozen=True, eq=False)
class Epoch:
    """The pairs of a corpus that one epoch reads, in its segmentations."""

    corpus: Any  # a `Corpus`, whose module imports this one
    # of the pairs, some of them several times; None: all in order
    numbers: Int[np.ndarray, " M"] | None
    # a Sampler, in this process or in others; None without subword sampling
    draw: Callable[..., Sequences] | None
    seed: int
    epoch: int

    @property
    def lengths(self) -> Int32[np.ndarray, "M 2"]:
        """The tokens that a plan reserves for each source and target."""
        return self.reserved(slice(None))

    def reserved(self, chosen: Chosen) -> Int32[np.ndarray, "N 2"]:
        """Returns the tokens that a plan reserves for these sources and targets."""
        best = self.corpus.lengths[self._pairs(chosen)]
        if self.draw is None:
            return best
        tables = self.corpus.sampler.reserved_lengths
        return np.stack(
            [np.take(table, best[:, side]) for side, table in enumerate(tables)], axis=1
        )

    def sequences(self, side: int, chosen: Chosen) -> Sequences:
        """Returns the concatenated tokens of these sources or targets, and their lengths."""
        pairs = self._pairs(chosen)
        if self.draw is None:
            return self.corpus.sequences(side, pairs)
        return self.draw(side, pairs, self.reserved(chosen)[:, side], self.seed, self.epoch)

    def annotations(self, chosen: Chosen) -> Annotations:
        """Returns the weights and links of these pairs."""
        return self.corpus.annotations(self._pairs(chosen))

    def corpus_tokens(self, chosen: Chosen) -> tuple[int, ...]:
        """Returns the target tokens that these pairs have of each corpus of a mixture; () if this
        is no mixture.
        """
        if self.numbers is None:
            return ()
        ends = np.cumsum(self.corpus.report["parts"])
        corpora = np.searchsorted(ends, self.numbers[chosen], side="right")
        tokens = self.reserved(chosen)[:, 1]
        return tuple(np.bincount(corpora, tokens, minlength=len(ends)).astype(int).tolist())

    def _pairs(self, chosen: Chosen) -> Chosen:
        return chosen if self.numbers is None else self.numbers[chosen]


@dataclass(frozen=True)
class Sampler:
    """Samples sentences of a corpus."""

    corpus: Any  # a `Corpus`
    tokenizer: Tokenizer
    rate: float  # BPE-dropout's rate or unigram's alpha
    # the greatest length that a plan reserves for a sentence, end-of-sentence included
    longest: int

    def __call__(
        self,
        side: int,
        pairs: Int[np.ndarray, " N"],
        limits: Int[np.ndarray, " N"],
        seed: int,
        epoch: int,
    ) -> Sequences:
        """Samples sentences of one side for an epoch, with at most `limits` tokens, end-of-sentence
        included.
        """
        samples = self.corpus.sentences(side, pairs)
        left = np.arange(len(pairs))
        for attempt in range(ATTEMPTS):
            drawn = self._draw(
                side, pairs[left], [samples[index] for index in left], (seed, epoch, attempt)
            )
            fits = np.array([len(tokens) for tokens in drawn], int) < limits[left]
            for index, tokens in itertools.compress(zip(left, drawn, strict=True), fits):
                samples[index] = tokens
            left = left[~fits]
        return end_sentences(samples, np.dtype(np.int32))

    @functools.cached_property
    def reserved_lengths(self) -> tuple[Int32[np.ndarray, " _"], Int32[np.ndarray, " _"]]:
        """The tokens that a plan reserves for a source and for a target, by the length of the best
        segmentation.

        The mean and the variance of a sample's length are taken to be in proportion to that length.
        All lengths count end-of-sentence.
        """
        return self._estimate(0), self._estimate(1)

    def _estimate(self, side: int) -> Int32[np.ndarray, " _"]:
        lengths = self.corpus.lengths[:, side]
        if not lengths[0]:  # the pairs do not have this side
            return np.zeros(1, np.int32)
        pairs = self.corpus.spread(_SAMPLE)
        best = lengths[pairs] - 1.0
        drawn = self._draw(side, pairs, self.corpus.sentences(side, pairs), (0, _NO_EPOCH, 0))
        sampled = np.array([len(tokens) for tokens in drawn])
        growth = sampled.sum() / best.sum()
        deviation = np.sqrt(np.mean((sampled - growth * best) ** 2 / best))
        with_end = np.arange(lengths.max() + 1)
        tokens = np.maximum(with_end - 1, 0)
        reserved = (1 + growth * tokens + MARGIN * deviation * np.sqrt(tokens)).astype(np.int32)
        return np.maximum(np.minimum(reserved, self.longest), with_end).astype(np.int32)

    def _draw(
        self,
        side: int,
        pairs: Int[np.ndarray, " N"],
        sentences: list[list[int]],
        seeds: tuple[int, ...],
    ) -> list[list[int]]:
        numbers = mix(*seeds, side, pairs) >> np.uint64(32)
        return self.tokenizer.sides[side].sample(sentences, numbers.tolist(), self.rate)


def mix(*values: int | Integer[np.ndarray, "N"]) -> UInt64[np.ndarray, "N"]:
    """Hashes integers, or arrays of integers elementwise, to 64 bits by applying SplitMix64 to each
    value in turn.
    """
    state = np.zeros(1, np.uint64)
    for value in values:
        state = state ^ np.atleast_1d(np.asarray(value).astype(np.uint64))
        state = state + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return state
