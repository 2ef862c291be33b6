"""The synthetic language: correct sentences, one translation each."""

from random import Random

import pytest

from configs import base
from transformer.data.sources import synthetic
from transformer.data.sources.synthetic import (
    NOUNS,
    Phrase,
    SyntheticSource,
    cardinal,
    clock,
    date,
    draw_pair,
)
from transformer.support.errors import UserError

SPLITS = ("train", "valid", "test")
NUMBERS = {
    1: ("one", "eins"),
    7: ("seven", "sieben"),
    16: ("sixteen", "sechzehn"),
    17: ("seventeen", "siebzehn"),
    20: ("twenty", "zwanzig"),
    21: ("twenty-one", "einundzwanzig"),
    30: ("thirty", "dreißig"),
    77: ("seventy-seven", "siebenundsiebzig"),
    100: ("one hundred", "einhundert"),
    112: ("one hundred twelve", "einhundertzwölf"),
    345: ("three hundred forty-five", "dreihundertfünfundvierzig"),
}
CLOCK = {
    (1, 0): ("at one o'clock", "um ein Uhr"),
    (12, 30): ("at half past twelve", "um halb eins"),
    (4, 15): ("at a quarter past four", "um Viertel nach vier"),
    (1, -20): ("at twenty to one", "um zwanzig vor eins"),
}
DAYS = {
    1: ("on the first of May", "am ersten Mai"),
    3: ("on the third of May", "am dritten Mai"),
    8: ("on the eighth of May", "am achten Mai"),
    17: ("on the seventeenth of May", "am siebzehnten Mai"),
    20: ("on the twentieth of May", "am zwanzigsten Mai"),
    22: ("on the twenty-second of May", "am zweiundzwanzigsten Mai"),
    30: ("on the thirtieth of May", "am dreißigsten Mai"),
    31: ("on the thirty-first of May", "am einunddreißigsten Mai"),
}
# number, definite: for each gender
THINGS = {
    (1, False): ("einen alten Brief", "eine alte Lampe", "ein altes Buch"),
    (1, True): ("den alten Brief", "die alte Lampe", "das alte Buch"),
    (3, False): ("drei alte Briefe", "drei alte Lampen", "drei alte Bücher"),
    (3, True): ("die drei alten Briefe", "die drei alten Lampen", "die drei alten Bücher"),
}


def test_numbers_dates_and_times_are_those_written_by_hand():
    assert {number: cardinal(number) for number in NUMBERS} == NUMBERS
    assert {time: clock(*time) for time in CLOCK} == CLOCK
    assert {day: date(day, Phrase("May", "Mai")) for day in DAYS} == DAYS


@pytest.mark.parametrize(("count", "definite"), THINGS)
def test_articles_and_adjectives_agree_with_the_noun(count, definite):
    nouns = {noun[0]: noun for noun in NOUNS}
    things = [
        synthetic._things(nouns[name], Phrase(*synthetic.ADJECTIVES[0]), count, definite).german
        for name in ("letter", "lamp", "book")
    ]
    assert tuple(things) == THINGS[count, definite]


def test_the_indefinite_article_depends_on_the_next_word():
    apple = next(noun for noun in NOUNS if noun[0] == "apple")
    adjectives = [Phrase(), Phrase("old", "alt"), Phrase("red", "rot")]
    phrases = [synthetic._things(apple, adjective, 1, False).english for adjective in adjectives]
    assert phrases == ["an apple", "an old apple", "a red apple"]


def test_the_parts_are_in_the_order_of_each_language():
    language = {
        english.decode(): german.decode()
        for english, german in SyntheticSource("train", 500, ("en", "de"))
    }
    by_hand = {
        # A statement: time before place; the indefinite object after the place, the definite one
        # before it.
        "I must find a clock on Thursday at five past eight.": (
            "Ich muss am Donnerstag um fünf nach acht eine Uhr finden."
        ),
        "I must hide the nine red pictures in the city on the twenty-ninth of July.": (
            "Ich muss am neunundzwanzigsten Juli die neun roten Bilder in der Stadt verstecken."
        ),
        "He says that my parents lost eleven lamps at school.": (
            "Er sagt, dass meine Eltern in der Schule elf Lampen verloren haben."
        ),
        "On Saturday at half past eleven my parents will see the three old flowers at home.": (
            "Am Samstag um halb zwölf werden meine Eltern die drei alten Blumen zu Hause sehen."
        ),
        "Did she buy eight dresses for two hundred seventeen euros at school?": (
            "Hat sie in der Schule acht Kleider für zweihundertsiebzehn Euro gekauft?"
        ),
    }
    assert by_hand == {english: language[english] for english in by_hand}


def test_a_sentence_has_one_translation():
    translations = {}
    for seed in range(5000):
        english, german = draw_pair(Random(seed))
        assert translations.setdefault(english, german) == german
        assert english[-1] in ".?" and "  " not in english + german


def test_no_sentence_is_in_two_splits():
    train, valid, test = (set(SyntheticSource(split, 500, ("en", "de"))) for split in SPLITS)
    assert not train & valid and not train & test and not valid & test
    assert len(train) == len(test) == 500


def test_pairs_have_the_languages_of_the_configuration():
    data = base.get_config().data
    data.source_language, data.target_language, data.synthetic_examples = "de", "en", 5
    assert [pair[::-1] for pair in SyntheticSource.open(data, "train")] == [
        *SyntheticSource("train", 5, ("en", "de"))
    ]
    data.source_language = ""
    assert all(german == b"" and english for german, english in SyntheticSource.open(data, "train"))
    data.source_language = "fr"
    with pytest.raises(
        UserError, match="^data.source_language=fr: must be en or de with data.source=synthetic"
    ):
        SyntheticSource.open(data, "train")


def test_sizes_of_the_splits():
    data = base.get_config().data
    data.synthetic_examples = 50_000
    assert [len(SyntheticSource.open(data, split)) for split in SPLITS] == [50_000, 500, 500]
    data.synthetic_examples = 1_000
    assert len(SyntheticSource.open(data, "test")) == 200
