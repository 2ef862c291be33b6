"""Sentences of a small language, English to German, made on the fly: a translation task with
nothing to download.

Words change places as in any German text: the verb moves to the end, the units come before the
tens, half past four is "halb fünf", and endings agree:

    On the third of May at half past four Anna will buy two old books for fifty-three euros.
    Am dritten Mai um halb fünf wird Anna zwei alte Bücher für dreiundfünfzig Euro kaufen.

Every sentence has exactly one translation.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

from transformer.config.types import Config
from transformer.support.errors import UserError


class Phrase(NamedTuple):
    """A part of a sentence in both languages."""

    english: str = ""
    german: str = ""


def _tables() -> list[list[tuple[str, ...]]]:
    """Reads the file of words: a table is a line that explains it and its rows; an empty line ends
    it.
    """
    tables = WORDS.read_text(encoding="utf-8").strip().split("\n\n")
    return [[_row(line) for line in table.splitlines()[1:]] for table in tables]


def _row(line: str) -> tuple[str, ...]:
    cells = line.split(" | ")
    return Phrase(*cells) if len(cells) == 2 else tuple(cells)


WORDS = Path(__file__).with_suffix(".txt")
(
    SUBJECTS,
    VERBS,
    AUXILIARIES,
    NOUNS,
    ADJECTIVES,
    ORDERS,
    PLACES,
    OPENINGS,
    WEEKDAYS,
    MONTHS,
    SMALL,
    TENS,
) = _tables()
TRADES = ("buy", "sell", "order")  # the verbs that may take a price
# The accusative: the article, and the ending of an adjective after it.
INDEFINITE = {"masculine": ("einen", "en"), "feminine": ("eine", "e"), "neuter": ("ein", "es")}
DEFINITE = {"masculine": ("den", "en"), "feminine": ("die", "e"), "neuter": ("das", "e")}
ENGLISH_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
    "twenty": "twentieth",
    "thirty": "thirtieth",
}
GERMAN_ORDINALS = {1: "ersten", 3: "dritten", 7: "siebten", 8: "achten"}


@dataclass(frozen=True)
class SyntheticSource:
    """`examples` pairs of a split: pair i is a pure function of (split, i), and no sentence is in
    two splits.
    """

    split: str
    examples: int
    languages: tuple[str, str]  # en, de or "" for a side that the pairs do not have

    @classmethod
    def open(cls, data: Config, split: str) -> "SyntheticSource":
        """Returns `data.synthetic_examples` pairs for training, or a hundredth of it, at least 200,
        held out.

        Raises UserError for other languages than English and German.
        """
        for key in ("source_language", "target_language"):
            if data[key] not in ("en", "de", ""):
                raise UserError(
                    f"data.{key}={data[key]}: must be en or de with data.source=synthetic"
                )
        examples = (
            data.synthetic_examples
            if split == "train"
            else max(200, data.synthetic_examples // 100)
        )
        return cls(split, examples, (data.source_language, data.target_language))

    @property
    def name(self) -> str:
        return f"synthetic sentences, {self.split}"

    @property
    def identity(self) -> dict:
        return {
            "source": "synthetic",
            "grammar": zlib.crc32(Path(__file__).read_bytes() + WORDS.read_bytes()),
        } | vars(self)

    def where(self, index: int, side: int) -> str:
        return f"{self.name}, pair {index + 1}"

    def __len__(self) -> int:
        return self.examples

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        for index in range(self.examples):
            random = Random(f"{self.split} {index}")
            split = None
            while split != self.split:
                pair = draw(random)
                # A pair belongs to one split: a twentieth of all to "valid", another to "test".
                split = {1: "valid", 2: "test"}.get(zlib.crc32(pair.english.encode()) % 20, "train")
            texts = {"en": pair.english, "de": pair.german, "": ""}
            yield tuple(texts[language].encode() for language in self.languages)


def draw(random: Random) -> Phrase:
    """Draws a sentence and its translation."""
    subject, german_subject, person = random.choice(SUBJECTS)
    infinitive, past, german_infinitive, participle = random.choice(VERBS)
    auxiliary, *german_auxiliaries = random.choice(AUXILIARIES)
    in_past = auxiliary == "did"
    order = random.choice(ORDERS)
    definite = random.random() < 0.4
    thing = _things(
        random.choice(NOUNS),
        random.choice(ADJECTIVES) if random.random() < 0.6 else Phrase(),
        count=random.randrange(2, 13) if random.random() < 0.7 else 1,
        definite=definite,
    )
    place = random.choice(PLACES) if random.random() < 0.4 else Phrase()
    price = Phrase()
    if infinitive in TRADES and random.random() < 0.8:
        # No amount ends in 01: its German form before "Euro" is disputed.
        amount = cardinal(random.choice((0, 0, *range(100, 1000, 100))) + random.randrange(2, 100))
        price = Phrase(f"for {amount.english} euros", f"für {amount.german} Euro")
    # In German a definite object precedes the place and an indefinite one follows it.
    german_rest = (thing, place, price) if definite else (place, thing, price)
    parts = {
        "opening": random.choice(OPENINGS),
        "subject": Phrase(subject, german_subject),
        "auxiliary": Phrase(auxiliary, german_auxiliaries[("ich", "er", "wir").index(person)]),
        "verb": Phrase(infinitive, participle if in_past else german_infinitive),
        "predicate": Phrase(past if in_past else f"{auxiliary} {infinitive}"),
        "rest": Phrase(_join(thing, price, place).english, _join(*german_rest).german),
        "time": _time(random)
        if random.random() < 0.7 or order.english.startswith("{time}")
        else Phrase(),
    }
    sentences = []
    for language, words in enumerate(order):
        text = " ".join(
            words.format(**{name: part[language] for name, part in parts.items()}).split()
        )
        sentences.append(text[0].upper() + text[1:].replace(" .", ".").replace(" ?", "?"))
    return Phrase(*sentences)


def _things(noun: tuple[str, ...], adjective: Phrase, count: int, definite: bool) -> Phrase:
    """Returns the object of a clause: "the old book", "two books"; in German in the accusative."""
    singular, plural, german_singular, german_plural, gender = noun
    if count == 1:
        an = (adjective.english or singular)[0] in "aeiou"
        german_article, ending = (DEFINITE if definite else INDEFINITE)[gender]
        article = Phrase("the" if definite else "an" if an else "a", german_article)
        name = Phrase(singular, german_singular)
    else:
        ending = "en" if definite else "e"
        article = _join(Phrase("the", "die") if definite else Phrase(), cardinal(count))
        name = Phrase(plural, german_plural)
    return _join(
        article, Phrase(adjective.english, adjective.german and adjective.german + ending), name
    )


def _time(random: Random) -> Phrase:
    weekday = random.choice(WEEKDAYS)
    month = random.choice(MONTHS)
    on_weekday = Phrase(f"on {weekday.english}", f"am {weekday.german}")
    day = on_weekday if random.random() < 0.5 else date(random.randrange(1, 32), month)
    if random.random() < 0.5:
        return day
    return _join(
        day,
        clock(random.randrange(1, 13), random.choice((0, 30, 5, 10, 15, 20, -5, -10, -15, -20))),
    )


def cardinal(number: int) -> Phrase:
    """Spells 1 <= number <= 999: 345 is "three hundred forty-five" and "dreihundertfünfundvierzig"."""
    if number >= 100:
        hundreds = SMALL[number // 100]
        rest = cardinal(number % 100) if number % 100 else Phrase()
        return Phrase(
            f"{hundreds[0]} hundred {rest.english}".rstrip(), f"{hundreds[1]}hundert{rest.german}"
        )
    if number < 20:
        return Phrase("one", "eins") if number == 1 else SMALL[number]
    tens = TENS[number // 10]
    units = SMALL[number % 10]
    return Phrase(f"{tens[0]}-{units[0]}", f"{units[1]}und{tens[1]}") if number % 10 else tens


def date(day: int, month: Phrase) -> Phrase:
    """Spells a day, of 1 to 31: "on the third of May" and "am dritten Mai"."""
    english, german = cardinal(day)
    tens, hyphen, last = english.rpartition("-")
    ordinal = tens + hyphen + ENGLISH_ORDINALS.get(last, last + "th")
    german_ordinal = GERMAN_ORDINALS.get(day, german + ("ten" if day < 20 else "sten"))
    return Phrase(f"on the {ordinal} of {month.english}", f"am {german_ordinal} {month.german}")


def clock(hour: int, minutes: int) -> Phrase:
    """Spells the time that is `minutes` past an hour of 1 to 12, or to it if they are negative."""
    if minutes == 0:
        return Phrase(f"at {cardinal(hour).english} o'clock", f"um {SMALL[hour][1]} Uhr")
    if minutes == 30:  # German names the hour that is half over
        return Phrase(
            f"at half past {cardinal(hour).english}", f"um halb {cardinal(hour % 12 + 1).german}"
        )
    amount = Phrase("a quarter", "Viertel") if abs(minutes) == 15 else cardinal(abs(minutes))
    relation = Phrase("past", "nach") if minutes > 0 else Phrase("to", "vor")
    return _join(Phrase("at", "um"), amount, relation, cardinal(hour))


def _join(*phrases: Phrase) -> Phrase:
    return Phrase(*(" ".join(filter(None, words)) for words in zip(*phrases, strict=True)))
