"""Generated sentences in English and German: a translation task without a download.

The word order differs as in any German text: the verb moves to the end, and the units precede the
tens. Half past four is "halb fünf", and endings agree:

    On the third of May at half past four Anna will buy two old books for fifty-three euros.
    Am dritten Mai um halb fünf wird Anna zwei alte Bücher für dreiundfünfzig Euro kaufen.

Every sentence has exactly one translation.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from transformer.config.types import Config
from transformer.support.errors import UserError


class Phrase(NamedTuple):
    """A part of a sentence in both languages."""

    english: str = ""
    german: str = ""


def _tables() -> list[list[Any]]:
    """Reads the file of words.

    Empty lines divide the tables. A table is a line that explains it, and a line for each row. A
    row of two columns is a `Phrase`, and any other row is a tuple.
    """
    tables = []
    for table in WORDS.read_text(encoding="utf-8").strip().split("\n\n"):
        rows = [tuple(line.split(" | ")) for line in table.splitlines()[1:]]
        tables.append([Phrase(*row) if len(row) == 2 else row for row in rows])
    return tables


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
    ENGLISH_ORDINALS,
    GERMAN_ORDINALS,
    ARTICLES,
) = _tables()
TRADES = ("buy", "sell", "order")  # the verbs that may take a price


@dataclass(frozen=True)
class SyntheticSource:
    """Generated pairs of a split.

    Pair i is a pure function of (split, i), and no sentence is in two splits.
    """

    split: str
    examples: int
    languages: tuple[str, str]  # en, de or "" for a side that the pairs do not have

    @classmethod
    def open(cls, data: Config, split: str) -> "SyntheticSource":
        """Returns `data.synthetic_examples` pairs for training.

        Held-out splits have a hundredth of this number, at least 200. Raises UserError for other
        languages than English and German.
        """
        for key in ("source_language", "target_language"):
            if data[key] not in ("en", "de", ""):
                raise UserError(
                    f"data.{key}={data[key]}: must be en or de with data.source=synthetic"
                )
        examples = data.synthetic_examples
        if split != "train":
            examples = max(200, examples // 100)
        return cls(split, examples, (data.source_language, data.target_language))

    @property
    def name(self) -> str:
        return f"synthetic sentences, {self.split}"

    @property
    def identity(self) -> dict:
        grammar = zlib.crc32(Path(__file__).read_bytes() + WORDS.read_bytes())
        return {"source": "synthetic", "grammar": grammar} | vars(self)

    def where(self, index: int, side: int) -> str:
        return f"{self.name}, pair {index + 1}"

    def __len__(self) -> int:
        return self.examples

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        for index in range(self.examples):
            random = Random(f"{self.split} {index}")
            split = None
            while split != self.split:
                pair = draw_pair(random)
                # A pair belongs to one split: a twentieth of all to "valid", another to "test".
                part = zlib.crc32(pair.english.encode()) % 20
                split = {1: "valid", 2: "test"}.get(part, "train")
            texts = {"en": pair.english, "de": pair.german, "": ""}
            source, target = (texts[language].encode() for language in self.languages)
            yield source, target


def draw_pair(random: Random) -> Phrase:
    """Draws a sentence and its translation."""
    subject, german_subject, person = random.choice(SUBJECTS)
    infinitive, past, german_infinitive, participle = random.choice(VERBS)
    auxiliary, *german_auxiliaries = random.choice(AUXILIARIES)
    in_past = auxiliary == "did"
    order = random.choice(ORDERS)

    # The object, the place and the price.
    definite = random.random() < 0.4
    noun = random.choice(NOUNS)
    adjective = random.choice(ADJECTIVES) if random.random() < 0.6 else Phrase()
    count = random.randrange(2, 13) if random.random() < 0.7 else 1
    thing = _things(noun, adjective, count, definite)
    place = random.choice(PLACES) if random.random() < 0.4 else Phrase()
    price = Phrase()
    if infinitive in TRADES and random.random() < 0.8:
        # No amount ends in 01: its German form before "Euro" is disputed.
        amount = cardinal(random.choice((0, 0, *range(100, 1000, 100))) + random.randrange(2, 100))
        price = Phrase(f"for {amount.english} euros", f"für {amount.german} Euro")

    opening = random.choice(OPENINGS)
    time = Phrase()
    if random.random() < 0.7 or order.english.startswith("{time}"):
        time = _time(random)

    # In German a definite object precedes the place, and an indefinite object follows it.
    german_rest = (thing, place, price) if definite else (place, thing, price)
    parts = {
        "opening": opening,
        "subject": Phrase(subject, german_subject),
        "auxiliary": Phrase(auxiliary, german_auxiliaries[("ich", "er", "wir").index(person)]),
        "verb": Phrase(infinitive, participle if in_past else german_infinitive),
        "predicate": Phrase(past if in_past else f"{auxiliary} {infinitive}"),
        "rest": Phrase(_join(thing, price, place).english, _join(*german_rest).german),
        "time": time,
    }

    # Fill the template of each language.
    sentences = []
    for language, template in enumerate(order):
        words = template.format(**{name: part[language] for name, part in parts.items()}).split()
        text = " ".join(words).replace(" .", ".").replace(" ?", "?")
        sentences.append(text[0].upper() + text[1:])
    return Phrase(*sentences)


def _things(noun: tuple[str, ...], adjective: Phrase, count: int, definite: bool) -> Phrase:
    """Returns the object of a clause: "the old book", "two books"; in German in the accusative."""
    singular, plural, german_singular, german_plural, gender = noun
    if count == 1:
        articles = {gender: forms for gender, *forms in ARTICLES}
        german_article, ending = articles[gender][2:] if definite else articles[gender][:2]
        article = "a"
        if definite:
            article = "the"
        elif (adjective.english or singular)[0] in "aeiou":
            article = "an"
        determiner = Phrase(article, german_article)
        name = Phrase(singular, german_singular)
    else:
        ending = "en" if definite else "e"
        determiner = _join(Phrase("the", "die") if definite else Phrase(), cardinal(count))
        name = Phrase(plural, german_plural)

    # Without an adjective there is no ending.
    german_adjective = adjective.german and adjective.german + ending
    return _join(determiner, Phrase(adjective.english, german_adjective), name)


def _time(random: Random) -> Phrase:
    weekday = random.choice(WEEKDAYS)
    month = random.choice(MONTHS)
    day = Phrase(f"on {weekday.english}", f"am {weekday.german}")
    if random.random() >= 0.5:
        day = date(random.randrange(1, 32), month)
    if random.random() < 0.5:
        return day
    hour = random.randrange(1, 13)
    minutes = random.choice((0, 30, 5, 10, 15, 20, -5, -10, -15, -20))
    return _join(day, clock(hour, minutes))


def cardinal(number: int) -> Phrase:
    """Spells 1 <= number <= 999, as in "three hundred five" and "dreihundertfünf"."""
    if number >= 100:
        hundreds = SMALL[number // 100]
        rest = cardinal(number % 100) if number % 100 else Phrase()
        return Phrase(
            f"{hundreds[0]} hundred {rest.english}".rstrip(), f"{hundreds[1]}hundert{rest.german}"
        )
    if number < 20:
        return Phrase("one", "eins") if number == 1 else SMALL[number]

    # English has the tens before the units, and German has the units before the tens.
    tens = TENS[number // 10]
    units = SMALL[number % 10]
    return Phrase(f"{tens[0]}-{units[0]}", f"{units[1]}und{tens[1]}") if number % 10 else tens


def date(day: int, month: Phrase) -> Phrase:
    """Spells a day from 1 to 31, as in "on the third of May" and "am dritten Mai"."""
    english, german = cardinal(day)

    # Only the last word of an English number has the form of an ordinal.
    tens, hyphen, last = english.rpartition("-")
    ordinal = tens + hyphen + dict(ENGLISH_ORDINALS).get(last, last + "th")

    regular = german + ("ten" if day < 20 else "sten")
    german_ordinal = dict(GERMAN_ORDINALS).get(str(day), regular)
    return Phrase(f"on the {ordinal} of {month.english}", f"am {german_ordinal} {month.german}")


def clock(hour: int, minutes: int) -> Phrase:
    """Spells a time, `minutes` past an hour from 1 to 12; negative minutes are before the hour."""
    hours = cardinal(hour)
    if minutes == 0:
        return Phrase(f"at {hours.english} o'clock", f"um {SMALL[hour][1]} Uhr")
    if minutes == 30:  # German names the hour that is half over
        next_hour = cardinal(hour % 12 + 1)
        return Phrase(f"at half past {hours.english}", f"um halb {next_hour.german}")

    # "twenty past four" or "ten to five"
    amount = Phrase("a quarter", "Viertel") if abs(minutes) == 15 else cardinal(abs(minutes))
    relation = Phrase("past", "nach") if minutes > 0 else Phrase("to", "vor")
    return _join(Phrase("at", "um"), amount, relation, hours)


def _join(*phrases: Phrase) -> Phrase:
    return Phrase(*(" ".join(filter(None, words)) for words in zip(*phrases, strict=True)))
