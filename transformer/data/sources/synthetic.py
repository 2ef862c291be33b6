"""Spelled-out numbers, English to German: a translation task with nothing to download.

The languages disagree where it matters: German says the units before the tens ("einundzwanzig"), writes everything
below a million as one word, and inflects the million ("eine Million", "zwei Millionen").
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, UInt64

from transformer.data.hashing import mix
from transformer.errors import UserError

LARGEST = 999_999_999
SMALLEST_MAXIMUM = 999  # below it too few numbers would be left to hold out


def _words(text: str) -> list[str]:
    return text.split()


ENGLISH_SMALL = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
ENGLISH_TENS = _words("- - twenty thirty forty fifty sixty seventy eighty ninety")
GERMAN_SMALL = _words(
    "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn "
    "achtzehn neunzehn"
)
GERMAN_TENS = _words("- - zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig")


def english(number: int) -> str:
    """Spells 0 <= number <= 999,999,999 in American English: 1234 is "one thousand two hundred thirty-four"."""
    if number == 0:
        return ENGLISH_SMALL[0]
    millions, thousands, rest = number // 1_000_000, number // 1000 % 1000, number % 1000
    words = []
    for group, scale in ((millions, "million"), (thousands, "thousand"), (rest, "")):
        if group:
            words += [*_english_below_thousand(group), scale]
    return " ".join(filter(None, words))


def _english_below_thousand(number: int) -> list[str]:
    hundreds, rest = divmod(number, 100)
    words = [ENGLISH_SMALL[hundreds], "hundred"] if hundreds else []
    if rest < 20:
        return words + ([ENGLISH_SMALL[rest]] if rest else [])
    tens, units = divmod(rest, 10)
    return words + [ENGLISH_TENS[tens] + (f"-{ENGLISH_SMALL[units]}" if units else "")]


def german(number: int) -> str:
    """Spells 0 <= number <= 999,999,999 in German: 1234 is "eintausendzweihundertvierunddreißig".

    A final one is "eins" when counting, "ein" before "tausend", and "eine" before the feminine "Million".
    """
    if number == 0:
        return GERMAN_SMALL[0]
    millions, thousands, rest = number // 1_000_000, number // 1000 % 1000, number % 1000
    word = _german_below_thousand(thousands, "ein") + "tausend" if thousands else ""
    word += _german_below_thousand(rest, "eins") if rest else ""
    if not millions:
        return word
    scale = "Million" if millions == 1 else "Millionen"
    return " ".join(filter(None, (_german_below_thousand(millions, "eine"), scale, word)))


def _german_below_thousand(number: int, one: str) -> str:
    """Spells 1 <= number <= 999; `one` is the form that a final one takes."""
    hundreds, rest = divmod(number, 100)
    word = GERMAN_SMALL[hundreds] + "hundert" if hundreds else ""
    if rest == 1:
        return word + one
    if rest < 20:
        return word + (GERMAN_SMALL[rest] if rest else "")
    tens, units = divmod(rest, 10)
    return word + (GERMAN_SMALL[units] + "und" if units else "") + GERMAN_TENS[tens]


_STREAMS = {"train": 0, "valid": 1, "test": 2}
_CLASSES = 20  # of every 20 numbers one is kept for "valid", another for "test"


@dataclass(frozen=True)
class SyntheticSource:
    """`examples` pairs of a split: pair i is a pure function of (split, i), and no number is in two splits.

    Numbers of d digits are drawn in proportion to 2d - 1, since there are few short ones and long ones are harder.
    Those below 100 are all left to training: they are the vocabulary that the rest is made of.
    """

    split: str
    examples: int
    maximum: int

    seekable = True

    @classmethod
    def open(cls, data, split: str) -> "SyntheticSource":
        """Reads `data.synthetic_examples` and `data.synthetic_maximum`; UserError if the latter is out of range."""
        if not SMALLEST_MAXIMUM <= data.synthetic_maximum <= LARGEST:
            raise UserError(
                f"data.synthetic_maximum={data.synthetic_maximum}: must be from {SMALLEST_MAXIMUM} to {LARGEST}"
            )
        examples = data.synthetic_examples if split == "train" else max(200, data.synthetic_examples // 100)
        return cls(split, examples, data.synthetic_maximum)

    @property
    def name(self) -> str:
        return f"synthetic numbers, {self.split}"

    @property
    def identity(self) -> dict:
        return {"source": "synthetic", "split": self.split, "examples": self.examples, "maximum": self.maximum}

    def where(self, index: int, side: int) -> str:
        return f"{self.name}, pair {index + 1}"

    def __len__(self) -> int:
        return self.examples

    def pairs(self, start: int, stop: int) -> Iterator[tuple[bytes, bytes]]:
        for number in self.numbers(start, stop).tolist():
            yield english(number).encode(), german(number).encode()

    def numbers(self, start: int, stop: int) -> Int[np.ndarray, "N"]:
        """The numbers of pairs start to stop: random candidates, drawn again while another split owns them."""
        indices = np.arange(start, stop)
        numbers = np.full(len(indices), -1)
        attempt = 0
        while (missing := np.flatnonzero(numbers < 0)).size:
            candidates = self._candidates(mix(_STREAMS[self.split], attempt, indices[missing]))
            accepted = _owner(candidates) == _STREAMS[self.split]
            numbers[missing[accepted]] = candidates[accepted]
            attempt += 1
        return numbers

    def _candidates(self, bits: UInt64[np.ndarray, "N"]) -> Int[np.ndarray, "N"]:
        most = len(str(self.maximum))
        digits = 1 + np.maximum(mix(bits, 1) % np.uint64(most), mix(bits, 2) % np.uint64(most)).astype(np.int64)
        low = np.where(digits == 1, 0, 10 ** (digits - 1))
        high = np.minimum(10**digits, self.maximum + 1)
        return low + (mix(bits, 3) % (high - low).astype(np.uint64)).astype(np.int64)


def _owner(numbers: Int[np.ndarray, "N"]) -> Int[np.ndarray, "N"]:
    """The one split (as in _STREAMS) that each number may appear in."""
    residue = (mix(numbers) % np.uint64(_CLASSES)).astype(np.int64)
    return np.where((numbers >= 100) & (residue <= 2) & (residue > 0), residue, 0)
