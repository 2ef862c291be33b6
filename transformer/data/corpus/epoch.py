"""The pairs that an epoch reads, and their segmentations.

An epoch reads each pair of a part of a mixture `weight` times. If `weight` is not a whole number,
each epoch reads the next pairs of an endless sequence of permutations of the part. After some
epochs all pairs have been read equally often.

With subword sampling, each epoch reads the training sentences in other segmentations (Kudo 2018,
Provilkov et al. 2020). The copies of a pair in one epoch have the same segmentation. The plan of an
epoch is made before its sentences are sampled, so it reserves the expected length and `MARGIN`
standard deviations. A longer sample is drawn again. After `ATTEMPTS` draws a sentence keeps its
best segmentation, which always fits. For one corpus and one `data.max_length`, a sample is a
function of (seed, epoch, side, sentence), on any thread or process and in any batch.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int, Int32, Integer, UInt64

from transformer.data.corpus.annotations import Annotations, PairNumbers, Sequences
from transformer.data.corpus.encoding import end_sentences
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.vocabulary import SentencePieceVocabulary

MARGIN = 1.0  # standard deviations above the expected length
ATTEMPTS = 4
# The sentences of a side from which the expected length and its standard deviation are estimated.
_SAMPLE = 2000
_NO_EPOCH = 1 << 32  # seeds the estimate

Selection = Int[np.ndarray, " N"] | slice  # indices into the pairs of an epoch


def pairs_of_epoch(
    counts: Sequence[int], weights: Sequence[float], seed: int, epoch: int
) -> PairNumbers:
    """Returns the numbers of the pairs that an epoch reads, part after part.

    `counts` and `weights` have a value for each part. The function is pure.
    """
    pairs = []
    first_pair = 0  # of the part
    for part, (count, weight) in enumerate(zip(counts, weights, strict=True)):
        # The epoch reads the pairs from `start` to `stop` of the endless sequence.
        start = round(epoch * weight * count)
        stop = round((epoch + 1) * weight * count)

        # A cycle is one permutation of the part.
        for cycle in range(start // count, -(-stop // count)):
            begin = max(start - cycle * count, 0)
            end = min(stop - cycle * count, count)
            if end - begin == count:  # a whole cycle needs no permutation
                numbers = np.arange(count)
            else:
                permutation = np.random.default_rng([seed, part, cycle]).permutation(count)
                numbers = np.sort(permutation[begin:end])
            pairs.append(first_pair + numbers)
        first_pair += count
    return np.concatenate(pairs)


@dataclass(frozen=True, eq=False)
class Epoch:
    """The pairs of a corpus that one epoch reads, in the segmentations of this epoch."""

    corpus: Any  # a `Corpus`, whose module imports this one
    # The numbers of the pairs, which may repeat; None: all pairs in order.
    numbers: PairNumbers | None
    # A `Sampler`, in this process or in others; None without subword sampling.
    sampler: Callable[..., Sequences] | None
    seed: int
    epoch: int

    @property
    def lengths(self) -> Int32[np.ndarray, "M 2"]:
        """The number of tokens that a plan reserves for each source and target."""
        return self.reserved_lengths(slice(None))

    def reserved_lengths(self, selection: Selection) -> Int32[np.ndarray, "N 2"]:
        """Returns the number of tokens that a plan reserves for these sources and targets."""
        best = self.corpus.lengths[self._pairs(selection)]
        if self.sampler is None:
            return best

        # The reserved length depends on the length of the best segmentation.
        tables = self.corpus.sampler.reserved_lengths
        sides = [np.take(table, best[:, side]) for side, table in enumerate(tables)]
        return np.stack(sides, axis=1)  # (N, 2)

    def sequences(self, side: int, selection: Selection) -> Sequences:
        """Returns the concatenated tokens of these sources or targets, and their lengths."""
        pairs = self._pairs(selection)
        if self.sampler is None:
            return self.corpus.sequences(side, pairs)
        limits = self.reserved_lengths(selection)[:, side]
        return self.sampler(side, pairs, limits, self.seed, self.epoch)

    def annotations(self, selection: Selection) -> Annotations:
        """Returns the weights, rewards and links of these pairs."""
        return self.corpus.annotations(self._pairs(selection))

    def corpus_tokens(self, selection: Selection) -> tuple[int, ...]:
        """Returns the target tokens of these pairs by corpus of a mixture; () without a mixture."""
        if self.numbers is None:
            return ()
        ends = np.cumsum(self.corpus.report["parts"])  # the first pair after each part
        corpora = np.searchsorted(ends, self.numbers[selection], side="right")
        tokens = self.reserved_lengths(selection)[:, 1]
        sums = np.bincount(corpora, tokens, minlength=len(ends))
        return tuple(sums.astype(int).tolist())

    def _pairs(self, selection: Selection) -> Selection:
        return selection if self.numbers is None else self.numbers[selection]


@dataclass(frozen=True)
class Sampler:
    """Samples segmentations of the sentences of a corpus."""

    corpus: Any  # a `Corpus`
    tokenizer: Tokenizer
    rate: float  # BPE-dropout's rate or unigram's alpha
    # The greatest length that a plan reserves for a sentence, end-of-sentence included.
    longest: int

    def __call__(
        self,
        side: int,
        pairs: PairNumbers,
        limits: Int[np.ndarray, " N"],
        seed: int,
        epoch: int,
    ) -> Sequences:
        """Samples sentences of one side, with at most `limits` tokens, end-of-sentence included."""
        sentences = self.corpus.sentences(side, pairs)
        remaining = np.arange(len(pairs))  # the sentences without a sample that fits
        for attempt in range(ATTEMPTS):
            best = [sentences[index] for index in remaining]
            samples = self._sample(side, pairs[remaining], best, (seed, epoch, attempt))

            # `limits` count end-of-sentence, and samples do not have it yet.
            fits = np.array([len(tokens) for tokens in samples], int) < limits[remaining]
            for index, tokens, does_fit in zip(remaining, samples, fits, strict=True):
                if does_fit:
                    sentences[index] = tokens
            remaining = remaining[~fits]
        return end_sentences(sentences, np.dtype(np.int32))

    @functools.cached_property
    def reserved_lengths(self) -> tuple[Int32[np.ndarray, " _"], Int32[np.ndarray, " _"]]:
        """The tokens that a plan reserves for a source and a target, by their best segmentations.

        Entry n is for sentences with n tokens in the best segmentation. The estimate takes the mean
        and the variance of the length of a sample to be proportional to n. All lengths count
        end-of-sentence.
        """
        return self._reserve(0), self._reserve(1)

    def _reserve(self, side: int) -> Int32[np.ndarray, " _"]:
        lengths = self.corpus.lengths[:, side]
        if not lengths[0]:  # the pairs do not have this side
            return np.zeros(1, np.int32)
        pairs = self.corpus.spread(_SAMPLE)
        sentences = self.corpus.sentences(side, pairs)
        samples = self._sample(side, pairs, sentences, (0, _NO_EPOCH, 0))
        sampled = np.array([len(tokens) for tokens in samples])
        best = lengths[pairs] - 1.0

        # Mean and variance of a sample's length, as factors of the length of the best segmentation.
        growth = sampled.sum() / best.sum()
        deviation = np.sqrt(np.mean((sampled - growth * best) ** 2 / best))

        # A sample may not be longer than `longest`, but the best segmentation always fits.
        with_end = np.arange(lengths.max() + 1)
        tokens = np.maximum(with_end - 1, 0)
        expected = 1 + growth * tokens
        margin = MARGIN * deviation * np.sqrt(tokens)
        reserved = np.minimum((expected + margin).astype(np.int32), self.longest)
        return np.maximum(reserved, with_end).astype(np.int32)

    def _sample(
        self,
        side: int,
        pairs: PairNumbers,
        sentences: list[list[int]],
        seeds: tuple[int, ...],
    ) -> list[list[int]]:
        # The seed of a sentence depends on its number, not on its batch.
        numbers = mix(*seeds, side, pairs) >> np.uint64(32)
        vocabulary = self.tokenizer.sides[side]
        assert isinstance(vocabulary, SentencePieceVocabulary)  # other kinds are refused
        return vocabulary.sample(sentences, numbers.tolist(), self.rate)


def mix(*values: int | Integer[np.ndarray, " N"]) -> UInt64[np.ndarray, " N"]:
    """Hashes integers, or arrays of integers elementwise, to 64 bits.

    Applies SplitMix64 to each value in turn.
    """
    state = np.zeros(1, np.uint64)
    for value in values:
        state = state ^ np.atleast_1d(np.asarray(value).astype(np.uint64))

        # The constants of the reference implementation.
        state = state + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return state
