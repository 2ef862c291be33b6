"""The pairs that an epoch reads, and in which segmentations.

An epoch reads each pair of a part of a mixture `weight` times. Where that is no whole number, it reads the next pairs
of an endless sequence of permutations of the part, so that after some epochs all pairs have been read equally often.
With subword sampling, the copies of a pair in one epoch have the same segmentation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int, Int32

from transformer.data.corpus.annotations import Annotations, Sequences

if TYPE_CHECKING:
    from transformer.data.corpus.corpus import Corpus

Chosen = Int[np.ndarray, " N"] | slice  # positions among the pairs of an epoch


def pairs_of_epoch(counts: Sequence[int], weights: Sequence[float], seed: int, epoch: int) -> Int[np.ndarray, " M"]:
    """Returns the numbers of the pairs that an epoch reads, part after part. A pure function of its arguments."""
    drawn, first = [], 0
    for part, (count, weight) in enumerate(zip(counts, weights, strict=True)):
        start, stop = (int(round(number * weight * count)) for number in (epoch, epoch + 1))
        for cycle in range(start // count, -(-stop // count)):
            begin, end = max(start - cycle * count, 0), min(stop - cycle * count, count)
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

    corpus: "Corpus"
    numbers: Int[np.ndarray, " M"] | None  # of the pairs, some of them several times; None: all in order
    draw: Callable[..., Sequences] | None  # a Sampler, in this process or in others; None without subword sampling
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
        return np.stack([np.take(table, best[:, side]) for side, table in enumerate(tables)], axis=1)

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
        """Returns the target tokens that these pairs have of each corpus of a mixture; () if this is no mixture."""
        if self.numbers is None:
            return ()
        ends = np.cumsum(self.corpus.report["parts"])
        corpora, tokens = np.searchsorted(ends, self.numbers[chosen], side="right"), self.reserved(chosen)[:, 1]
        return tuple(np.bincount(corpora, tokens, minlength=len(ends)).astype(int).tolist())

    def _pairs(self, chosen: Chosen) -> Chosen:
        return chosen if self.numbers is None else self.numbers[chosen]
