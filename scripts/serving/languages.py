"""Languages: their English names, and the detection of a text's language among those served."""

import copy
import functools
import re
from collections.abc import Collection
from pathlib import Path

from py3langid.langid import MODEL_FILE, LanguageIdentifier

from transformer.data.languages import base_code

FILE = Path(__file__).with_name("languages.tsv")
# in English, by code
NAMES = dict(line.split("\t") for line in FILE.read_text("utf-8").splitlines())

# Languages that langid.py knows by another code.
LABELS = {"nb": "no", "nob": "no", "nor": "no", "nno": "nn", "fil": "tl"}
# Subtags of Chinese, and the codec with its characters: Simplified or Traditional.
_CHINESE = {
    **dict.fromkeys(("hans", "cn", "sg"), "gb2312"),
    **dict.fromkeys(("hant", "tw", "hk", "mo"), "big5"),
}


def name(code: str) -> str:
    """Returns the English name of a language, or the code if it has none here."""
    return NAMES.get(_label(code), code)


def chinese_codec(code: str) -> str:
    """Returns the codec for the characters of a code of Chinese such as "zh-TW"."""
    tags = filter(_CHINESE.__contains__, re.split("[-_]", code.lower()))
    return _CHINESE[next(tags, "hans")]


@functools.cache
def _load() -> LanguageIdentifier:
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def _label(code: str) -> str:
    """Returns the code by which langid.py knows a language."""
    base = base_code(code)
    return LABELS.get(base, base)


class Detector:
    """Finds the language of a text among a few: naive Bayes on byte n-grams (Lui and Baldwin 2012,
    langid.py).

    A language that langid.py does not know is only found if it is the only one. Of several variants
    of a language the first one is found; of Chinese, the one whose characters the text has.
    """

    def __init__(self, codes: Collection[str]) -> None:
        self.codes = list(codes)
        self._identifier = copy.copy(_load())  # `set_languages` replaces its arrays
        known = set(self._identifier.labels)
        self._labels = {code: _label(code) for code in codes if _label(code) in known}
        self._identifier.set_languages(list(set(self._labels.values())))

    def knows(self, codes: Collection[str]) -> bool:
        return all(code in self._labels for code in codes)

    def __call__(self, text: str, among: Collection[str] | None = None) -> list[dict]:
        """Returns {"language": code, "confidence": percent} for each language, the most probable
        one first.

        `among` are the languages to choose from, by default all. Equally probable ones keep their
        order.
        """
        among = self.codes if among is None else list(among)
        variants = {}
        for code in filter(self._labels.__contains__, among):
            variants.setdefault(self._labels[code], []).append(code)
        if len(among) == 1 or not variants:
            return [{"language": code, "confidence": 100.0} for code in among[:1]]
        shares = dict(self._identifier.rank(text))
        total = sum(shares[label] for label in variants) or 1.0
        ranks = []
        for label in sorted(variants, key=lambda label: -shares[label]):
            confidence = round(float(100 * shares[label] / total), 1)
            ranks.append({"language": _variant(text, variants[label]), "confidence": confidence})
        return ranks


def _variant(text: str, codes: list[str]) -> str:
    """Returns the variant of Chinese whose codec has most of the text; else the first code."""
    if base_code(codes[0]) != "zh":
        return codes[0]
    return max(codes, key=lambda code: len(text.encode(chinese_codec(code), "ignore")))
