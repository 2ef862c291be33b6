"""Number words against a list written by hand, and the promises about which numbers are where."""

import numpy as np
import pytest

from configs import base
from transformer.data.sources.synthetic import SyntheticSource, english, german
from transformer.errors import UserError

WORDS = {
    0: ("zero", "null"),
    1: ("one", "eins"),
    7: ("seven", "sieben"),
    10: ("ten", "zehn"),
    12: ("twelve", "zwölf"),
    16: ("sixteen", "sechzehn"),
    17: ("seventeen", "siebzehn"),
    20: ("twenty", "zwanzig"),
    21: ("twenty-one", "einundzwanzig"),
    30: ("thirty", "dreißig"),
    66: ("sixty-six", "sechsundsechzig"),
    77: ("seventy-seven", "siebenundsiebzig"),
    100: ("one hundred", "einhundert"),
    101: ("one hundred one", "einhunderteins"),
    111: ("one hundred eleven", "einhundertelf"),
    121: ("one hundred twenty-one", "einhunderteinundzwanzig"),
    1_000: ("one thousand", "eintausend"),
    1_001: ("one thousand one", "eintausendeins"),
    2_016: ("two thousand sixteen", "zweitausendsechzehn"),
    21_000: ("twenty-one thousand", "einundzwanzigtausend"),
    101_101: ("one hundred one thousand one hundred one", "einhunderteintausendeinhunderteins"),
    1_000_000: ("one million", "eine Million"),
    1_000_001: ("one million one", "eine Million eins"),
    2_000_000: ("two million", "zwei Millionen"),
    1_234_567: (
        "one million two hundred thirty-four thousand five hundred sixty-seven",
        "eine Million zweihundertvierunddreißigtausendfünfhundertsiebenundsechzig",
    ),
    21_000_012: ("twenty-one million twelve", "einundzwanzig Millionen zwölf"),
    101_000_000: ("one hundred one million", "einhunderteine Millionen"),
    900_080_007: ("nine hundred million eighty thousand seven", "neunhundert Millionen achtzigtausendsieben"),
}


@pytest.mark.parametrize("number", WORDS)
def test_words_are_those_written_by_hand(number):
    assert (english(number), german(number)) == WORDS[number]


def test_every_number_has_words_of_its_own():
    numbers = [*range(2_000), *range(999_000, 1_003_000), *range(999_999_000, 1_000_000_000)]
    for spell in (english, german):
        assert len({spell(number) for number in numbers}) == len(numbers)


@pytest.mark.parametrize("maximum", [999, 54_321, 999_999_999])
def test_no_number_is_in_two_splits(maximum):
    train, valid, test = (set(SyntheticSource(split, 20_000, maximum).numbers(0, 20_000).tolist()) for split in SPLITS)
    assert not train & valid and not train & test and not valid & test
    assert set(range(100)) <= train
    assert min(train) == 0 and max(train | valid | test) <= maximum


SPLITS = ("train", "valid", "test")


def test_a_pair_does_not_depend_on_where_reading_starts():
    source = SyntheticSource("valid", 500, 999_999_999)
    everything = list(source.pairs(0, 500))
    assert list(source.pairs(123, 130)) == everything[123:130]
    assert [english(number).encode() for number in source.numbers(0, 500).tolist()] == [pair[0] for pair in everything]


def test_long_numbers_are_drawn_most():
    digits = np.array([len(str(number)) for number in SyntheticSource("train", 81_000, 999_999_999).numbers(0, 81_000)])
    counts = np.bincount(digits, minlength=10)[3:]  # of the shorter ones none is held out, and all of them remain
    expected = 1000 * (2 * np.arange(3, 10) - 1)
    np.testing.assert_allclose(counts / counts.sum(), expected / expected.sum(), atol=0.01)


def test_sizes_of_the_splits():
    data = base.get_config().data
    data.synthetic_examples = 50_000
    assert [len(SyntheticSource.open(data, split)) for split in SPLITS] == [50_000, 500, 500]
    data.synthetic_examples = 1_000
    assert len(SyntheticSource.open(data, "test")) == 200


def test_a_maximum_that_leaves_nothing_to_hold_out_is_refused():
    data = base.get_config().data
    data.synthetic_maximum = 99
    with pytest.raises(UserError, match=r"data\.synthetic_maximum=99: must be from 999 to 999999999"):
        SyntheticSource.open(data, "train")
