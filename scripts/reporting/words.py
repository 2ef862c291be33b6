"""Words of translations: where two of them differ, and how well words of each frequency are found."""

import collections
import difflib
from collections.abc import Sequence
from typing import NamedTuple

# The least number of occurrences in the references of the words of each group.
FREQUENCIES = (1, 2, 4, 8, 16, 32, 64, 128)


class Mark(NamedTuple):
    """A span of words of a text. is_common: another text has the span in this place too."""

    text: str
    is_common: bool


def mark_differences(text: str, other: str) -> list[Mark]:
    """Splits `text` into spans of words that `other` shares in the same order, and spans that it does not."""
    words, other_words = text.split(), other.split()
    marks = []
    for kind, begin, end, _, _ in difflib.SequenceMatcher(None, words, other_words, autojunk=False).get_opcodes():
        if begin < end:
            marks.append(Mark(" ".join(words[begin:end]), kind == "equal"))
    return marks


class Group(NamedTuple):
    """Words by how often the references have them, and the F1 score of finding them, in percent."""

    least: int
    most: int | None
    words: int
    f1: float


def f1_by_frequency(hypotheses: Sequence[str], references: Sequence[str]) -> list[Group]:
    """Returns the F1 score of words, by the frequency of the word in all references.

    A word of a hypothesis is found if its reference has it as well, as often as that has it. Words are separated by
    spaces. Groups without words are left out.
    """
    frequency = collections.Counter(word for line in references for word in line.split())
    matched, wanted, produced = collections.Counter(), collections.Counter(), collections.Counter()
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        words, expected = collections.Counter(hypothesis.split()), collections.Counter(reference.split())
        for counts, total in ((words & expected, matched), (expected, wanted), (words, produced)):
            for word, count in counts.items():
                total[_group(frequency[word])] += count
    most = [*(least - 1 for least in FREQUENCIES[1:]), None]
    return [
        Group(FREQUENCIES[i], most[i], wanted[i], 200 * matched[i] / (wanted[i] + produced[i]))
        for i in range(len(FREQUENCIES))
        if wanted[i]
    ]


def _group(frequency: int) -> int | None:
    """Returns the number of the group of a word; None for a word that no reference has."""
    return sum(frequency >= least for least in FREQUENCIES) - 1 if frequency else None
