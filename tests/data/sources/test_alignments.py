"""Word alignments: their lines, and what is no line of them."""

import pytest

from tests.data.files import write
from transformer.data.sources.alignments import parse_links, read_links
from transformer.errors import UserError


def test_each_pair_has_the_links_of_its_line(tmp_path):
    write(tmp_path / "links.gz", ["0-0 2-1", "", "1?0 10p3"])
    links = read_links(tmp_path / "links.gz", 3, "news")
    assert links == [[(0, 0), (2, 1)], [], [(1, 0), (10, 3)]]
    assert parse_links("1?0 2-2", "here") == [(1, 0, False), (2, 2, True)]
    assert read_links(None, 2, "news") == [[], []] and read_links(None, 0, "news") == []


@pytest.mark.parametrize(
    ("line", "message"),
    [("0-0 1:1", "line 2: 1:1 is not a link such as 0-1"), ("0-0 -1-1", "line 2: -1-1"), ("1-99999", "line 2: 1-9")],
)
def test_anything_but_a_link_is_named_with_its_line(tmp_path, line, message):
    write(tmp_path / "links", ["0-0", line])
    with pytest.raises(UserError, match=message):
        read_links(tmp_path / "links", 2, "news")
    with pytest.raises(UserError, match="links: has 2 lines for 3 pairs of news"):
        read_links(tmp_path / "links", 3, "news")
