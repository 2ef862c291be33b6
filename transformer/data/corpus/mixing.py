"""The pairs of a mixture that an epoch reads.

An epoch reads each pair of a part `weight` times. Where that is no whole number, it reads the next pairs of an endless
sequence of permutations of the part, so that after some epochs all pairs have been read equally often. With subword
sampling, the copies of a pair in one epoch have the same segmentation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int, Int32

from transformer.data.corpus.annotations import Annotations, Sequences


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


@dataclass(frozen=True)
class MixedEpoch:
    """The pairs of a corpus, or of its samples of an epoch, that a mixture reads; some occur several times."""

    pairs: Any  # a Corpus or SampledEpoch
    numbers: Int[np.ndarray, " M"]
    ends: Int[np.ndarray, " C"]  # the number of pairs up to the end of each corpus

    @property
    def is_estimated(self) -> bool:
        return self.pairs.is_estimated

    @property
    def lengths(self) -> Int32[np.ndarray, "M 2"]:
        """The tokens that a plan reserves for each source and target."""
        return self.pairs.lengths[self.numbers]

    def reserved(self, chosen: Int[np.ndarray, " N"]) -> Int32[np.ndarray, "N 2"]:
        """Returns the tokens that a plan reserves for these sources and targets."""
        return self.pairs.reserved(self.numbers[chosen])

    def sequences(self, side: int, chosen: Int[np.ndarray, " N"]) -> Sequences:
        """Returns the concatenated tokens of these sources or targets, and their lengths."""
        return self.pairs.sequences(side, self.numbers[chosen])

    def corpus_tokens(self, chosen: Int[np.ndarray, " N"]) -> tuple[int, ...]:
        """Returns the target tokens that these pairs have of each corpus."""
        corpora, tokens = np.searchsorted(self.ends, self.numbers[chosen], side="right"), self.reserved(chosen)[:, 1]
        return tuple(np.bincount(corpora, tokens, minlength=len(self.ends)).astype(int).tolist())

    def annotations(self, chosen: Int[np.ndarray, " N"]) -> Annotations:
        """Returns the weights and links of these pairs."""
        return self.pairs.annotations(self.numbers[chosen])
