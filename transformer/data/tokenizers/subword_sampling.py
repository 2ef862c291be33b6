"""Subword regularization: random segmentations of words.

BPE-dropout follows Algorithm 1 of Provilkov et al. 2020, and unigram sampling section 3 of Kudo
2018. SentencePiece implements both, but seeds its generator from the system in every process, so
its samples cannot be repeated.

Each word is segmented separately: no piece extends over the mark (U+2581) at the start of a word.
"""

import bisect
import functools
import itertools
import math
import random
from collections.abc import Sequence

_CACHED_WORDS = 1 << 16
_CACHED_PATHS = 1 << 14  # of BPE-dropout, from segmentations other than single characters
# In characters. A sentence without spaces is one word, which does not occur again.
_LONGEST_CACHED = 32


class BpeDropout:
    """Byte-pair encoding that skips each possible merge with probability `rate` > 0 at each step.

    `scores` are the scores of the pieces. The best merge makes the piece with the highest score.

    Most words follow the greedy merges for a while, so the greedy path from each segmentation is
    cached. One geometric draw gives the number of merges before the first skipped merge.
    """

    def __init__(self, scores: dict[str, float], rate: float) -> None:
        self._scores = scores
        self._rate = rate
        self._per_merge = 1 / math.log1p(-rate)
        self._first_path = functools.lru_cache(_CACHED_WORDS)(self._greedy_path)
        self._next_path = functools.lru_cache(_CACHED_PATHS)(self._greedy_path)

    def segment(self, word: str, generator: random.Random) -> list[str]:
        """Returns the pieces of a random segmentation."""
        is_cached = len(word) <= _LONGEST_CACHED
        first_path = self._first_path if is_cached else self._greedy_path
        next_path = self._next_path if is_cached else self._greedy_path
        path = first_path(word)
        while True:
            # The greedy path is followed for a geometric number of merges.
            num_merges = int(math.log(1.0 - generator.random()) * self._per_merge)
            if num_merges >= len(path) - 1:
                return path[-1][0]
            # The best merge is skipped here. Any other merge may be skipped too.
            symbols, merges = path[num_merges]
            merge = next((index for index in merges[1:] if generator.random() >= self._rate), None)
            if merge is None:
                return symbols
            path = next_path(tuple(_merge(symbols, merge)))

    def _greedy_path(self, symbols: Sequence[str]) -> list[tuple[list[str], list[int]]]:
        """Returns these symbols, and the segmentations after each of the best merges.

        With each segmentation come the indices of symbols that form a piece with the next symbol,
        the best merge first.
        """
        path = []
        symbols = list(symbols)
        while True:
            # The merges are pairs of neighbours that form a piece, by descending score.
            ranks = []
            for index, (first, second) in enumerate(itertools.pairwise(symbols)):
                score = self._scores.get(first + second)
                if score is not None:
                    ranks.append((-score, index))
            merges = [index for _, index in sorted(ranks)]
            path.append((symbols, merges))
            if not merges:
                return path
            symbols = _merge(symbols, merges[0])


def _merge(symbols: list[str], index: int) -> list[str]:
    """Joins the symbol at this index with the next symbol."""
    return [*symbols[:index], symbols[index] + symbols[index + 1], *symbols[index + 2 :]]


class UnigramSampler:
    """Samples a segmentation with probability proportional to P(segmentation)^alpha.

    P is the product of the probabilities of the pieces. `scores` are their logarithms.
    """

    def __init__(self, scores: dict[str, float], alpha: float) -> None:
        self._scores = scores
        self._alpha = alpha
        self._longest = max(map(len, scores))
        self._unknown = min(scores.values()) - 10.0  # the penalty of SentencePiece
        self._cached_forward = functools.lru_cache(_CACHED_WORDS)(self._forward)

    def segment(self, word: str, generator: random.Random) -> list[str]:
        """Returns the pieces of a random segmentation: forward filtering, backward sampling."""
        forward = self._cached_forward if len(word) <= _LONGEST_CACHED else self._forward
        table = forward(word)

        # Choose the last piece first, in proportion to the weights of its possible starts.
        end = len(word)
        pieces = []
        while end:
            starts, cumulative = table[end]
            threshold = generator.random() * cumulative[-1]
            start = starts[bisect.bisect(cumulative, threshold, hi=len(starts) - 1)]
            pieces.append(word[start:end])
            end = start
        return pieces[::-1]

    def _forward(self, word: str) -> list[tuple[list[int], list[float]]]:
        """Returns the possible starts of the last piece of each prefix, and cumulative weights."""
        table: list[tuple[list[int], list[float]]] = [([], [])]
        log_sums = [0.0]  # over all segmentations of each prefix
        for end in range(1, len(word) + 1):
            starts = []
            log_weights = []
            for start in range(max(0, end - self._longest), end):
                # An unknown character is a piece.
                default = self._unknown if start == end - 1 else None
                score = self._scores.get(word[start:end], default)
                if score is not None:
                    starts.append(start)
                    log_weights.append(log_sums[start] + self._alpha * score)

            # Subtract the largest weight, so that exp does not underflow.
            largest = max(log_weights)
            weights = [math.exp(weight - largest) for weight in log_weights]
            cumulative = list(itertools.accumulate(weights))
            log_sums.append(largest + math.log(cumulative[-1]))
            table.append((starts, cumulative))
        return table
