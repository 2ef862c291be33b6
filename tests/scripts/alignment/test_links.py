"""Links from weights that were written by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from scripts.alignment.links import choose_heads, word_links
from transformer.data.corpus.annotations import number_words, word_starts
from transformer.decoding.forced_decoding import Attention
from transformer.support.errors import UserError

SOURCE = ("\u2581the", "\u2581h", "ouse", "</s>")
TARGET = ("\u2581das", "\u2581H", "aus", "</s>")


def attention(*cross: list[list[float]]) -> Attention:
    """Returns the attention of a layer whose heads have these weights (T, S) of cross-attention."""
    empty = np.zeros((1, len(cross), 4, 4), np.float32)
    return Attention(
        SOURCE, ("<s>", *TARGET[:-1]), TARGET, empty, empty, np.array([cross], np.float32)
    )


@pytest.mark.parametrize(
    ("pieces", "numbers"),
    [
        (SOURCE[:-1], [0, 1, 1]),
        (["1", "2", "3"], [0, 1, 2]),  # ids have no marks
        (["\u2581", "a", "\u2581b"], [0, 0, 1]),
        ([], []),
    ],
)
def test_pieces_of_a_word_have_its_number(pieces, numbers):
    assert number_words(word_starts(pieces)).tolist() == numbers


def test_a_word_is_linked_to_the_word_with_the_largest_sum_of_weights():
    # No token of the second target word has its largest weight on a token of "house", whose sum is
    # the largest.
    weights = attention(
        [[0.9, 0.0, 0.0, 0.1], [0.4, 0.3, 0.3, 0.0], [0.3, 0.2, 0.25, 0.25], [0, 0, 0, 1]]
    )
    assert word_links(weights, [(0, 0)]) == {(0, 0), (1, 1)}


def test_end_of_sentence_is_never_linked():
    weights = attention(
        [[0.1, 0.0, 0.0, 0.9], [0.0, 0.1, 0.0, 0.9], [0.0, 0.0, 0.1, 0.9], [0, 0, 0, 1]]
    )
    assert word_links(weights, [(0, 0)]) == {(0, 0), (1, 1)}


def test_several_heads_are_averaged():
    straight = [[0.7, 0.3, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    crossed = [[0.4, 0.6, 0, 0], [0.7, 0.3, 0, 0], [0.7, 0.3, 0, 0], [0, 0, 0, 1]]
    weights = attention(straight, crossed)
    assert word_links(weights, [(0, 1)]) == {(1, 0), (0, 1)}
    assert word_links(weights, [(0, 0), (0, 1)]) == {(0, 0), (1, 1)}


def test_heads_are_those_of_the_decoder_by_layer_and_number():
    config = SimpleNamespace(num_layers=1, num_decoder_layers=2, num_heads=2)
    assert choose_heads(config, "average") == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert choose_heads(config, "1.2, 2.1") == [(0, 1), (1, 0)]
    with pytest.raises(
        UserError, match="--heads=2.3: must be average, or LAYER.HEAD from 1.1 to 2.2"
    ):
        choose_heads(config, "2.3")
