"""Language codes, and language identification by function words."""

import re
from collections.abc import Sequence

# ISO 639-3 codes of the languages for which scoring or identification have rules, and those of two letters.
_THREE_LETTERS = {
    **{"bod": "bo", "cat": "ca", "ces": "cs", "cmn": "zh", "dan": "da", "deu": "de", "dzo": "dz", "ell": "el"},
    **{"eng": "en", "est": "et", "fin": "fi", "fra": "fr", "gle": "ga", "hun": "hu", "isl": "is", "ita": "it"},
    **{"jpn": "ja", "khm": "km", "kor": "ko", "lao": "lo", "lav": "lv", "lit": "lt", "mya": "my", "nld": "nl"},
    **{"pol": "pl", "por": "pt", "ron": "ro", "rus": "ru", "slk": "sk", "slv": "sl", "spa": "es", "swe": "sv"},
    **{"tam": "ta", "tha": "th", "tur": "tr", "ukr": "uk", "zho": "zh"},
}
# Chinese and Japanese have no spaces: each of their characters counts as a word.
_WORD = re.compile("[\u3040-\u30ff\u4e00-\u9fff]|[^\\W\\d_]+")
_FUNCTION_WORDS = {
    "cs": "a v se na je že s z do to i ve pro k o by ale jako",
    "da": "og er det at en den til på de som med for af ikke",
    "de": "der die und das den ist ein eine einem mit zu auf nicht in von",
    "en": "the of and to in is a that on with for are it was",
    "es": "de la que el en y los se del las un una con por",
    "fi": "ja on ei se että oli hän joka mutta ovat myös kun ole sen",
    "fr": "de la le et les des en un une du est que dans qui",
    "it": "di che e il la un una in per del non con sono della",
    "ja": "の は に を が で と た し て",
    "nl": "de het een en van in is op dat te met zijn voor niet",
    "pl": "w i z na się nie do to jest że jak po od przez",
    "pt": "de que o a do da em um uma para com não os no",
    "ro": "de și în a la cu pe nu un o din este pentru care",
    "ru": "и в не на что с по как это к из он для то",
    "sv": "och att det som en på är av för den med till inte ett",
    "tr": "bir ve bu de da için ile çok ne o gibi daha var olarak",
    "uk": "і в на не що з у та до як це від для за",
    "zh": "的 是 不 了 在 我 有 人 这 他 们 中",
}
FUNCTION_WORDS = {code: frozenset(words.split()) for code, words in _FUNCTION_WORDS.items()}


def base_code(language: str) -> str:
    """Returns the language of a code such as "pt-BR", "zh_cn" or "deu_Latn", in two letters if it is known by three."""
    code = re.split("[-_]", language.lower())[0]
    return _THREE_LETTERS.get(code, code)


def script(language: str) -> str:
    """Returns the script of a code such as "zho_Hans", in lower case; "" if it names none."""
    return next((subtag for subtag in re.split("[-_]", language.lower())[1:] if len(subtag) == 4), "")


def function_word_shares(texts: Sequence[str]) -> dict[str, float]:
    """Returns, for each language of the table, the fraction of all words that are among its function words."""
    words = [word for text in texts for word in _WORD.findall(text.lower())]
    return {code: sum(word in known for word in words) / max(len(words), 1) for code, known in FUNCTION_WORDS.items()}
