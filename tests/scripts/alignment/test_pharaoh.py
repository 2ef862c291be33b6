"""Alignments as text, and the error rate of an example worked out by hand."""

import pytest

from scripts.alignment.links import Gold, error_rate, format_links, read_gold
from transformer.support.errors import UserError


def test_links_are_written_in_the_order_of_the_target():
    assert format_links(frozenset({(2, 0), (0, 1), (10, 2)})) == "2-0 0-1 10-2"
    assert format_links(frozenset()) == ""


@pytest.fixture
def read(tmp_path):
    """Reads lines of annotated links."""

    def read(*lines: str) -> list[Gold]:
        path = tmp_path / "gold"
        path.write_text("".join(f"{line}\n" for line in lines))
        return read_gold(path)

    return read


def test_sure_links_are_possible_too(read):
    assert read("0-0 1?1 2p2", "") == [
        (frozenset({(0, 0)}), frozenset({(0, 0), (1, 1), (2, 2)})),
        (frozenset(), frozenset()),
    ]
    with pytest.raises(UserError, match="line 2: 1:1 is not a link"):
        read("0-0", "0-0 1:1")


def test_links_from_1_on_are_warned_of(read, caplog):
    read("0-0 2-2", "1-1"), read("")
    assert not caplog.text
    read("1-1 2p2", "1-2")
    assert "gold: no link has a word 0; number the words from 0, not from 1." in caplog.text


def test_error_rate(read):
    aligned = [frozenset({(0, 0), (1, 1), (2, 2)}), frozenset({(0, 1)})]
    gold = read("0-0 1?1 3-3", "0-0 0-1")
    # 4 links, of which 2 are sure and 3 possible; 4 sure links in the gold.
    rate = error_rate(aligned, gold)
    assert rate == (
        pytest.approx(1 - (2 + 3) / (4 + 4)),
        pytest.approx(3 / 4),
        pytest.approx(2 / 4),
    )
    assert error_rate([gold[0][0]], gold[:1])[0] == 0
