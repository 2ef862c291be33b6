"""Subword regularisation: a word's segmentation drawn at random.

BPE-dropout is Provilkov et al. 2020, Algorithm 1; sampling from a unigram model is Kudo 2018, section 3.

SentencePiece can do this too, but salts its generator anew in every process: not even a seed makes a run repeatable.
Words are segmented one by one, since no piece reaches across the mark (U+2581) that starts a word.
"""

import bisect
import functools
import itertools
import math
import random
from dataclasses import dataclass

_CACHED_WORDS = 1 << 16
_NONE = -math.inf  # the score of what is no piece


class BpeDropout:
    """Byte-pair encoding in which every possible merge is left out with probability `rate` > 0, anew at each step.

    `scores` gives each piece's; the merge into the piece with the highest comes first. Where the merges of a word lead
    is remembered, and a single draw says how many best merges in a row are made: most words need no other.
    """

    def __init__(self, scores: dict[str, float], rate: float) -> None:
        self._scores, self._rate = scores, rate
        self._per_merge = 1 / math.log1p(-rate)
        self._begin = functools.lru_cache(_CACHED_WORDS)(self._begin)

    def segment(self, word: str, generator: random.Random) -> list[str]:
        path = self._begin(word)
        while True:
            made = int(math.log(1.0 - generator.random()) * self._per_merge)  # geometric
            if made >= len(path) - 1:
                return path[-1].symbols
            split = path[made]  # where the best merge is left out, and perhaps the next best too
            at = next((place for place in split.possible()[1:] if generator.random() >= self._rate), None)
            if at is None:
                return split.symbols
            if at not in split.paths:
                split.paths[at] = self._path(self._merged(split, at))
            path = split.paths[at]

    def _begin(self, word: str) -> list["_Split"]:
        pairs = itertools.pairwise(word)
        return self._path(_Split(list(word), [self._score(first + second) for first, second in pairs], {}))

    def _path(self, split: "_Split") -> list["_Split"]:
        """All that comes of making the best merge again and again."""
        path = [split]
        while (best := max(split.scores, default=_NONE)) > _NONE:
            split = self._merged(split, split.scores.index(best))
            path.append(split)
        return path

    def _merged(self, split: "_Split", at: int) -> "_Split":
        symbols = [*split.symbols[:at], split.symbols[at] + split.symbols[at + 1], *split.symbols[at + 2 :]]
        scores = [*split.scores[:at], *split.scores[at + 1 :]]
        for changed in range(max(at - 1, 0), min(at + 1, len(scores))):
            scores[changed] = self._score(symbols[changed] + symbols[changed + 1])
        return _Split(symbols, scores, {})

    def _score(self, pair: str) -> float:
        return self._scores.get(pair, _NONE)


@dataclass(slots=True)
class _Split:
    """A word in symbols; the score of merging each with the next; and what follows those merges that were drawn."""

    symbols: list[str]
    scores: list[float]
    paths: dict[int, list["_Split"]]

    def possible(self) -> list[int]:
        """Where two symbols make a piece, best first."""
        places = [place for place, score in enumerate(self.scores) if score > _NONE]
        return sorted(places, key=lambda place: -self.scores[place])


class UnigramSampler:
    """Draws a segmentation with probability proportional to that of its pieces to the power `alpha`.

    `scores` gives the pieces' log-probabilities. A character that is no piece counts as one less likely than any.
    """

    def __init__(self, scores: dict[str, float], alpha: float) -> None:
        self._scores, self._alpha = scores, alpha
        self._longest = max(map(len, scores))
        self._unknown = min(scores.values()) - 10.0  # SentencePiece's own penalty
        self._last_pieces = functools.lru_cache(_CACHED_WORDS)(self._last_pieces)

    def segment(self, word: str, generator: random.Random) -> list[str]:
        table, end, pieces = self._last_pieces(word), len(word), []
        while end:
            starts, cumulative = table[end]
            start = starts[bisect.bisect(cumulative, generator.random() * cumulative[-1], hi=len(starts) - 1)]
            pieces.append(word[start:end])
            end = start
        return pieces[::-1]

    def _last_pieces(self, word: str) -> list[tuple[list[int], list[float]]]:
        """For each prefix of the word, where its last piece may start, and the cumulative weights of these starts."""
        table: list[tuple[list[int], list[float]]] = [([], [])]
        log_sums = [0.0]  # of all segmentations of each prefix
        for end in range(1, len(word) + 1):
            starts, log_weights = [], []
            for start in range(max(0, end - self._longest), end):
                score = self._scores.get(word[start:end], self._unknown if start == end - 1 else None)
                if score is not None:
                    starts.append(start)
                    log_weights.append(log_sums[start] + self._alpha * score)
            largest = max(log_weights)
            cumulative = list(itertools.accumulate(math.exp(weight - largest) for weight in log_weights))
            log_sums.append(largest + math.log(cumulative[-1]))
            table.append((starts, cumulative))
        return table
