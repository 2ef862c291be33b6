"""Subword regularization: segmentations of words drawn at random.

BPE-dropout follows Provilkov et al. 2020, Algorithm 1; unigram sampling follows Kudo 2018, section
3.

SentencePiece implements both, but seeds its generator from the system in every process, so draws
cannot be repeated. Words are segmented one at a time: no piece extends over the mark (U+2581) at
the start of a word.
"""

import bisect
import functools
import itertools
import math
import random
from collections.abc import Sequence

_CACHED_WORDS = 1 << 16
_CACHED_PATHS = 1 << 14  # of BPE-dropout, below those of whole words
# characters; a sentence without spaces is one word, which does not occur again
_LONGEST_CACHED = 32


class BpeDropout:
    """Byte-pair encoding that skips every possible merge with probability `rate` > 0, drawn again
    at each step.

    `scores` are those of the pieces; the merge into the piece with the highest score comes first.
    Most words follow the greedy merges for a while, so the greedy path of each word is cached, and
    that from each segmentation. One geometric draw gives the number of merges until the first
    skipped one.
    """

    def __init__(self, scores: dict[str, float], rate: float) -> None:
        self._scores = scores
        self._rate = rate
        self._per_merge = 1 / math.log1p(-rate)
        self._first_path = functools.lru_cache(_CACHED_WORDS)(self._greedy_path)
        self._path = functools.lru_cache(_CACHED_PATHS)(self._greedy_path)

    def segment(self, word: str, generator: random.Random) -> list[str]:
        is_cached = len(word) <= _LONGEST_CACHED
        first_path, next_path = (
            (self._first_path, self._path) if is_cached else (self._greedy_path, self._greedy_path)
        )
        path = first_path(word)
        while True:
            count = int(math.log(1.0 - generator.random()) * self._per_merge)  # geometric
            if count >= len(path) - 1:
                return path[-1][0]
            # its best merge is skipped; any other merge may be skipped too
            symbols, merges = path[count]
            merge = next((index for index in merges[1:] if generator.random() >= self._rate), None)
            if merge is None:
                return symbols
            path = next_path(tuple(_joined(symbols, merge)))

    def _greedy_path(self, symbols: Sequence[str]) -> list[tuple[list[str], list[int]]]:
        """Returns the segmentation into these symbols and those that follow by always making the
        best merge.

        Each is the list of its symbols, and the indices of symbols that form a piece with the next,
        best first.
        """
        path = []
        symbols = list(symbols)
        while True:
            scores = [
                self._scores.get(first + second) for first, second in itertools.pairwise(symbols)
            ]
            merges = [index for index, score in enumerate(scores) if score is not None]
            merges.sort(key=lambda index, scores=scores: -scores[index])
            path.append((symbols, merges))
            if not merges:
                return path
            symbols = _joined(symbols, merges[0])


def _joined(symbols: list[str], index: int) -> list[str]:
    """Returns the symbols with the one at this index and the next as one."""
    return [*symbols[:index], symbols[index] + symbols[index + 1], *symbols[index + 2 :]]


class UnigramSampler:
    """Draws a segmentation with probability proportional to the product of its pieces'
    probabilities, to `alpha`.
    """

    def __init__(self, scores: dict[str, float], alpha: float) -> None:
        self._scores = scores
        self._alpha = alpha
        self._longest = max(map(len, scores))
        self._unknown = min(scores.values()) - 10.0  # SentencePiece's own penalty
        self._cached_forward = functools.lru_cache(_CACHED_WORDS)(self._forward)

    def segment(self, word: str, generator: random.Random) -> list[str]:
        forward = self._cached_forward if len(word) <= _LONGEST_CACHED else self._forward
        table = forward(word)
        end = len(word)
        pieces = []
        while end:
            starts, cumulative = table[end]
            start = starts[
                bisect.bisect(cumulative, generator.random() * cumulative[-1], hi=len(starts) - 1)
            ]
            pieces.append(word[start:end])
            end = start
        return pieces[::-1]

    def _forward(self, word: str) -> list[tuple[list[int], list[float]]]:
        """Returns for each prefix where its last piece can start, and the cumulative weights of
        these starts.
        """
        table: list[tuple[list[int], list[float]]] = [([], [])]
        log_sums = [0.0]  # over all segmentations of each prefix
        for end in range(1, len(word) + 1):
            starts = []
            log_weights = []
            for start in range(max(0, end - self._longest), end):
                score = self._scores.get(
                    word[start:end], self._unknown if start == end - 1 else None
                )
                if score is not None:
                    starts.append(start)
                    log_weights.append(log_sums[start] + self._alpha * score)
            largest = max(log_weights)
            cumulative = list(
                itertools.accumulate(math.exp(weight - largest) for weight in log_weights)
            )
            log_sums.append(largest + math.log(cumulative[-1]))
            table.append((starts, cumulative))
        return table
