"""Links from weights that were written by hand."""

import numpy as np
import pytest

from scripts.alignment.links import heads_of, most_consistent, word_links, word_numbers
from transformer.decoding.forced_decoding import Attention

SOURCE = ("\u2581the", "\u2581h", "ouse", "</s>")
TARGET = ("\u2581das", "\u2581H", "aus", "</s>")


def attention(*cross: list[list[float]]) -> Attention:
    """Returns the attention of a layer whose heads have these weights (T, S) of cross-attention."""
    empty = np.zeros((1, len(cross), 4, 4), np.float32)
    return Attention(SOURCE, ("<s>", *TARGET[:-1]), TARGET, empty, empty, np.array([cross], np.float32))


def test_pieces_of_a_word_have_its_number():
    assert word_numbers(SOURCE[:-1]).tolist() == [0, 1, 1]
    assert word_numbers(["1", "2", "3"]).tolist() == [0, 1, 2]  # ids have no marks
    assert word_numbers(["\u2581", "a", "\u2581b"]).tolist() == [0, 0, 1]
    assert word_numbers([]).tolist() == []


def test_a_word_is_linked_to_the_word_with_the_largest_sum_of_weights():
    # No token of the second target word has its largest weight on a token of "house", whose sum is the largest.
    weights = attention([[0.9, 0.0, 0.0, 0.1], [0.4, 0.3, 0.3, 0.0], [0.3, 0.2, 0.25, 0.25], [0, 0, 0, 1]])
    assert word_links(weights, [(0, 0)]) == {(0, 0), (1, 1)}


def test_end_of_sentence_is_never_linked():
    weights = attention([[0.1, 0.0, 0.0, 0.9], [0.0, 0.1, 0.0, 0.9], [0.0, 0.0, 0.1, 0.9], [0, 0, 0, 1]])
    assert word_links(weights, [(0, 0)]) == {(0, 0), (1, 1)}


def test_several_heads_are_averaged():
    straight = [[0.7, 0.3, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    crossed = [[0.4, 0.6, 0, 0], [0.7, 0.3, 0, 0], [0.7, 0.3, 0, 0], [0, 0, 0, 1]]
    weights = attention(straight, crossed)
    assert heads_of(weights) == {"1.1": (0, 0), "1.2": (0, 1)}
    assert word_links(weights, [(0, 1)]) == {(1, 0), (0, 1)}
    assert word_links(weights, [(0, 0), (0, 1)]) == {(0, 0), (1, 1)}


def test_the_most_consistent_head_shares_most_links_with_the_others():
    first, second, third = "1.1", "1.2", "1.3"
    links = {
        first: [frozenset({(0, 0), (1, 1)}), frozenset({(0, 0)})],
        second: [frozenset({(0, 0), (2, 1)}), frozenset({(0, 0)})],
        third: [frozenset({(3, 0), (1, 1)}), frozenset({(0, 0)})],
    }
    # The first head shares (0, 0) with the second, (1, 1) with the third, and (0, 0) of the second sentence with both.
    best, agreement = most_consistent(links)
    assert best == first and agreement == pytest.approx(4 / 6)
