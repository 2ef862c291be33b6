"""Differences between translations, and F1 by the frequency of words, worked out by hand."""

import pytest

from scripts.reporting.scores import f1_by_frequency
from scripts.reporting.sentences import mark_differences


def test_common_words_keep_their_order():
    text, other = "the red cat sat down", "the cat sat up"
    marks = mark_differences(text, other)
    assert marks == [("the", True), ("red", False), ("cat sat", True), ("down", False)]
    assert mark_differences(other, text) == [("the", True), ("cat sat", True), ("up", False)]
    assert mark_differences("", text) == []
    assert mark_differences(text, text) == [(text, True)]


def test_f1_counts_words_in_the_group_of_their_frequency():
    references = ["a a b", "a c", "a d d"]  # a: 4, b: 1, c: 1, d: 2
    hypotheses = ["a b b", "x a", "a a d"]
    once, twice, four = f1_by_frequency(hypotheses, references)
    # b is found once of two, c is not found: 1 of 2 wanted, 2 given.
    assert once == {"group": "1", "count": 2, "score": pytest.approx(100 * 2 * 1 / (2 + 2))}
    assert twice == {
        "group": "2\N{EN DASH}3",
        "count": 2,
        "score": pytest.approx(100 * 2 * 1 / (2 + 1)),
    }
    # a is found 1 + 1 + 1 times, wanted 4 and given 4 times.
    assert four == {
        "group": "4\N{EN DASH}7",
        "count": 4,
        "score": pytest.approx(100 * 2 * 3 / (4 + 4)),
    }
