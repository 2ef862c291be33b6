"""Alignments as text, and the error rate of an example worked out by hand."""

import pytest

from scripts.alignment.links import Gold, error_rate, format_links, parse_gold


def test_links_are_written_in_the_order_of_the_target():
    assert format_links(frozenset({(2, 0), (0, 1), (10, 2)})) == "2-0 0-1 10-2"
    assert format_links(frozenset()) == ""


def test_sure_links_are_possible_too():
    assert parse_gold("0-0 1?1 2p2") == Gold(frozenset({(0, 0)}), frozenset({(0, 0), (1, 1), (2, 2)}))
    assert parse_gold("") == Gold(frozenset(), frozenset())
    with pytest.raises(ValueError, match="1:1 is not a link"):
        parse_gold("0-0 1:1")


def test_error_rate():
    aligned = [frozenset({(0, 0), (1, 1), (2, 2)}), frozenset({(0, 1)})]
    gold = [parse_gold("0-0 1?1 3-3"), parse_gold("0-0 0-1")]
    # 4 links, of which 2 are sure and 3 possible; 4 sure links in the gold.
    rate = error_rate(aligned, gold)
    assert rate == (pytest.approx(1 - (2 + 3) / (4 + 4)), pytest.approx(3 / 4), pytest.approx(2 / 4))
    assert error_rate([gold[0].sure], gold[:1])[0] == 0
