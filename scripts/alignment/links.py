"""Links between the words of a sentence pair, from the weights of cross-attention."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from transformer.decoding.activations import Attention
from transformer.training.objectives import word_starts

Links = frozenset[tuple[int, int]]  # (source word, target word), from 0


class Head(NamedTuple):
    """A head of cross-attention, with numbers from 1."""

    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.layer}.{self.head}"


def heads_of(attention: Attention) -> list[Head]:
    layers, heads = attention.cross.shape[:2]
    return [Head(i + 1, j + 1) for i in range(layers) for j in range(heads)]


def token_weights(attention: Attention, heads: Sequence[Head]) -> Float[np.ndarray, "T S"]:
    """Returns the attention weights (T, S), averaged over heads, without end-of-sentence on either side."""
    return np.mean([attention.cross[head.layer - 1, head.head - 1, :-1, :-1] for head in heads], axis=0)


def word_numbers(pieces: Sequence[str]) -> Int[np.ndarray, "T"]:
    """Returns the number of the word of each piece. Without SentencePiece's marks, each piece is a word."""
    starts = word_starts(pieces)
    starts[:1] = True  # some vocabularies do not mark the first word
    return np.cumsum(starts) - 1


def word_links(attention: Attention, heads: Sequence[Head]) -> Links:
    """Returns a link from each target word to the source word with the largest weight, the mean over its tokens."""
    sources, targets = (word_numbers(each[:-1]) for each in (attention.source_pieces, attention.target_output_pieces))
    if not len(sources) or not len(targets):
        return frozenset()
    weights = token_weights(attention, heads)
    by_source = weights @ _membership(sources).astype(weights.dtype)
    of_target = _membership(targets)
    by_word = of_target.T.astype(weights.dtype) @ by_source / of_target.sum(0)[:, None]
    return frozenset((int(source), target) for target, source in enumerate(by_word.argmax(1)))


def _membership(words: Int[np.ndarray, "T"]) -> Bool[np.ndarray, "T W"]:
    return words[:, None] == np.arange(words[-1] + 1)


def most_consistent(found: Mapping[Head, Sequence[Links]]) -> tuple[Head, float]:
    """Returns the head that agrees most with all other heads, and the fraction of their links that it shares.

    Heads that align attend to the same words, and others attend to different ones, so no gold alignment is needed.
    `found` are the links of each head in several sentences, in the same order.
    """
    counts: dict[tuple[int, int, int], int] = {}
    for sentences in found.values():
        for number, links in enumerate(sentences):
            for link in links:
                counts[number, *link] = counts.get((number, *link), 0) + 1

    def agreement(head: Head) -> float:
        shared = [counts[number, *link] - 1 for number, links in enumerate(found[head]) for link in links]
        return sum(shared) / max(len(shared) * (len(found) - 1), 1)

    best = max(found, key=agreement)
    return best, agreement(best)
