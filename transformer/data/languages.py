"""Language codes, and tags of sources."""

import re

from transformer.config.types import Config

# From ISO 639-3 to ISO 639-1, for the languages for which tokenizers and metrics have rules.
_THREE_LETTERS = {
    "bod": "bo",
    "cat": "ca",
    "ces": "cs",
    "cmn": "zh",
    "dan": "da",
    "deu": "de",
    "dzo": "dz",
    "ell": "el",
    "eng": "en",
    "est": "et",
    "fin": "fi",
    "fra": "fr",
    "gle": "ga",
    "hun": "hu",
    "isl": "is",
    "ita": "it",
    "jpn": "ja",
    "khm": "km",
    "kor": "ko",
    "lao": "lo",
    "lav": "lv",
    "lit": "lt",
    "mya": "my",
    "nld": "nl",
    "pol": "pl",
    "por": "pt",
    "ron": "ro",
    "rus": "ru",
    "slk": "sk",
    "slv": "sl",
    "spa": "es",
    "swe": "sv",
    "tam": "ta",
    "tha": "th",
    "tur": "tr",
    "ukr": "uk",
    "zho": "zh",
}


def base_code(language: str) -> str:
    """Returns the language of a code such as "pt-BR", "zh_cn" or "deu_Latn".

    A code of three letters becomes one of two letters if the language has rules.
    """
    code = re.split("[-_]", language.lower())[0]
    return _THREE_LETTERS.get(code, code)


def script(language: str) -> str:
    """Returns the script of a code such as "zho_Hans", in lower case, or ""."""
    for subtag in re.split("[-_]", language.lower())[1:]:
        if len(subtag) == 4:
            return subtag
    return ""


def source_tag(data: Config) -> str:
    """Returns `data.source_tag`, which begins each source, with the languages inserted."""
    tag = data.source_tag.replace("{source_language}", data.source_language)
    return tag.replace("{target_language}", data.target_language)
