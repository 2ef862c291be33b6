"""Languages: their English names, and the detection of a text's language among those served."""

import copy
import functools
import re
from collections.abc import Collection
from pathlib import Path

from py3langid.langid import MODEL_FILE, LanguageIdentifier

from transformer.data.languages import base_code

FILE = Path(__file__).with_name("languages.tsv")
NAMES = dict(line.split("\t") for line in FILE.read_text("utf-8").splitlines())  # by code

# Codes of languages for which langid.py has another code.
LABELS = {"nb": "no", "nob": "no", "nor": "no", "nno": "nn", "fil": "tl"}
# Subtags of Chinese, and the codec of their characters: Simplified or Traditional.
_CHINESE = {
    **dict.fromkeys(("hans", "cn", "sg"), "gb2312"),
    **dict.fromkeys(("hant", "tw", "hk", "mo"), "big5"),
}


def name(code: str) -> str:
    """Returns the English name of a language, or the code if it has none here."""
    return NAMES.get(_label(code), code)


def chinese_codec(code: str) -> str:
    """Returns the codec for Simplified or Traditional characters, by a code such as "zh-TW"."""
    tags = filter(_CHINESE.__contains__, re.split("[-_]", code.lower()))
    return _CHINESE[next(tags, "hans")]


@functools.cache
def _load() -> LanguageIdentifier:
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def _label(code: str) -> str:
    """Returns the code that langid.py has for a language."""
    base = base_code(code)
    return LABELS.get(base, base)


class Detector:
    """A detector of a text's language among a few: naive Bayes on byte n-grams, by langid.py.

    See Lui and Baldwin (2012). A language that langid.py does not know is detected only if it is
    the only one. Among variants of a language the first one is detected; among variants of Chinese,
    the one with the characters of the text.
    """

    def __init__(self, codes: Collection[str]) -> None:
        self.codes = list(codes)
        self._identifier = copy.copy(_load())  # `set_languages` replaces its arrays
        labels = {code: _label(code) for code in codes}
        supported = set(self._identifier.labels)
        self._labels = {code: label for code, label in labels.items() if label in supported}
        self._identifier.set_languages(list(set(self._labels.values())))

    def knows(self, codes: Collection[str]) -> bool:
        return all(code in self._labels for code in codes)

    def __call__(self, text: str, among: Collection[str] | None = None) -> list[dict]:
        """Returns {"language": code, "confidence": percent} for each language.

        The most probable language is the first one. Equally probable languages keep their order.
        `among` are the languages to choose from; None: all of them.
        """
        among = self.codes if among is None else list(among)
        variants = {}  # the codes of each label
        for code in among:
            if code in self._labels:
                variants.setdefault(self._labels[code], []).append(code)
        if len(among) == 1 or not variants:
            return [{"language": code, "confidence": 100.0} for code in among[:1]]

        # Probabilities are over all languages of the detector; here they sum to 1 over `among`.
        probabilities = dict(self._identifier.rank(text))
        total = sum(probabilities[label] for label in variants) or 1.0
        ranks = []
        for label in sorted(variants, key=lambda label: -probabilities[label]):
            confidence = round(float(100 * probabilities[label] / total), 1)
            ranks.append({"language": _variant(text, variants[label]), "confidence": confidence})
        return ranks


def _variant(text: str, codes: list[str]) -> str:
    """Returns the variant of Chinese that can encode most of the text; else the first code."""
    if base_code(codes[0]) != "zh":
        return codes[0]
    return max(codes, key=lambda code: len(text.encode(chinese_codec(code), "ignore")))
