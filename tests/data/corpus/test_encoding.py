"""The rules for training pairs, at and beyond their limits."""

import pytest

from transformer.data.corpus import encoding

RULES = encoding.Rules(max_length=10, max_length_ratio=2.0, deduplicate=False)


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        (9, 9, None),  # exactly max_length with end-of-sentence
        (10, 9, "too_long"),
        (9, 10, "too_long"),
        (8, 4, None),  # exactly the ratio
        (9, 4, "length_ratio"),
        (1, 3, "length_ratio"),
        (0, 3, "empty"),
        (3, 0, "empty"),
    ],
)
def test_limits_are_inclusive(source, target, reason):
    assert encoding.drop_reason([source, target], RULES) == reason


def test_a_tag_is_no_part_of_the_text_but_takes_room():
    assert encoding.drop_reason([5, 2], RULES, tag_length=2) is None
    assert encoding.drop_reason([8, 2], RULES, tag_length=2) == "length_ratio"
    assert encoding.drop_reason([10, 8], RULES, tag_length=2) == "too_long"
    assert {encoding.drop_reason([length, 3], RULES, tag_length=2) for length in (0, 2)} == {
        "empty"
    }


def test_a_ratio_of_zero_means_no_limit():
    assert encoding.drop_reason([1, 9], encoding.Rules(10, 0.0, False)) is None


def test_hashes_depend_on_where_the_source_ends():
    assert encoding.content_hash("a b", "c") != encoding.content_hash("a", "b c")
    assert encoding.content_hash("a", "b") == encoding.content_hash("a", "b")


def test_summary_names_reasons_by_frequency():
    assert encoding.summary(28_990, {"empty": 3, "duplicate": 7, "too_long": 0}) == (
        "28,990 pairs kept, 10 dropped: 7 repeated, 3 with an empty side"
    )
    assert encoding.summary(5, {"empty": 0}) == "5 pairs kept, none dropped"
    assert encoding.summary(1, {"duplicate": 1}) == "1 pair kept, 1 dropped: 1 repeated"


def test_without_limits_only_pairs_with_an_empty_side_are_dropped():
    assert encoding.drop_reason([1000, 1], encoding.Rules()) is None
    assert encoding.drop_reason([0, 1], encoding.Rules()) == "empty"
