"""Annotations of training pairs: weights in the loss, and links between their words."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int, Int32, UInt16

Sequences = tuple[Int32[np.ndarray, " _"], Int32[np.ndarray, " _"]]  # concatenated tokens; tokens of each sentence


class Annotations(NamedTuple):
    """The annotations of N pairs.

    weights: of each pair in the loss; None if none has any.
    links: (source word, target word) of each pair; None if none has any.
    starts: for source and target, the mask of the tokens that begin a word.
    """

    weights: Float32[np.ndarray, " N"] | None = None
    links: Sequence[UInt16[np.ndarray, "_ 2"]] | None = None
    starts: Sequence[Bool[np.ndarray, " _"]] = ()

    def link_tokens(
        self,
        sides: Sequence[Sequences],
        rows: Int[np.ndarray, " N"],
        firsts: Sequence[Int[np.ndarray, " N"]],
        shape: tuple[int, int, int],
    ) -> Bool[np.ndarray, "B T S"]:
        """Returns which tokens belong to linked words; `firsts` are the positions of the sentences in their rows.

        Leaves out links of words that the sentences do not have.
        """
        linked = np.zeros(shape, bool)
        words = [words_of(side, starts) for side, starts in zip(sides, self.starts, strict=True)]
        for row, links, sources, targets, source, target in zip(rows, self.links, *words, *firsts, strict=True):
            by_word = np.zeros((targets.max(initial=-1) + 1, sources.max(initial=-1) + 1), bool)
            links = links[(links < by_word.shape[::-1]).all(axis=1)]
            by_word[links[:, 1], links[:, 0]] = True
            region = linked[row, target : target + len(targets), source : source + len(sources)]
            region[:] = by_word[targets][:, sources]
        return linked

    def count_outside(self, sides: Sequence[Sequences]) -> int:
        """Counts the pairs with links of words that their sentences do not have."""
        words = zip(*(words_of(side, starts) for side, starts in zip(sides, self.starts, strict=True)), strict=True)
        counts = [[numbers.max(initial=-1) + 1 for numbers in pair] for pair in words]
        return sum(bool((links >= count).any()) for links, count in zip(self.links, counts, strict=True))


def words_of(side: Sequences, starts: Bool[np.ndarray, " V"]) -> list[Int[np.ndarray, " _"]]:
    """Returns the number of the word of each token of each sentence, without end-of-sentence."""
    tokens, lengths = side
    return [number_words(starts[sentence[:-1]]) for sentence in np.split(tokens, np.cumsum(lengths))[:-1]]


def number_words(starts: Bool[np.ndarray, " T"]) -> Int[np.ndarray, " T"]:
    """Returns the number of the word of each token, given which tokens begin one."""
    numbers = np.cumsum(starts)
    return numbers - numbers[:1]  # some vocabularies do not mark the first word


def word_starts(pieces: Sequence[str]) -> Bool[np.ndarray, " V"]:
    """Returns whether each token begins a word. In a vocabulary that marks no beginnings, each token is a word."""
    starts = np.array([piece.startswith("\u2581") for piece in pieces])
    return starts if starts.any() else np.ones(len(pieces), bool)
