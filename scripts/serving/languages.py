"""Languages: their English names, and the detection of a text's language among those served."""

from collections.abc import Collection

from py3langid.langid import MODEL_FILE, LanguageIdentifier

from transformer.data.languages import base_code

NAMES = {
    **{"ar": "Arabic", "bg": "Bulgarian", "ca": "Catalan", "cs": "Czech", "da": "Danish", "de": "German"},
    **{"el": "Greek", "en": "English", "es": "Spanish", "et": "Estonian", "fa": "Persian", "fi": "Finnish"},
    **{"fr": "French", "ga": "Irish", "he": "Hebrew", "hi": "Hindi", "hu": "Hungarian", "id": "Indonesian"},
    **{"is": "Icelandic", "it": "Italian", "ja": "Japanese", "ko": "Korean", "lt": "Lithuanian", "lv": "Latvian"},
    **{"nl": "Dutch", "no": "Norwegian", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian"},
    **{"sk": "Slovak", "sl": "Slovenian", "sv": "Swedish", "tr": "Turkish", "uk": "Ukrainian", "zh": "Chinese"},
}


def name(code: str) -> str:
    """Returns the English name of a language, or the code if it has none here."""
    return NAMES.get(base_code(code), code)


class Detector:
    """Finds the language of a text among a few: naive Bayes on byte n-grams (Lui and Baldwin 2012, langid.py).

    A language that langid.py does not know is only found if it is the only one.
    """

    def __init__(self, codes: Collection[str]) -> None:
        self.codes = list(codes)
        self._identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        known = set(self._identifier.labels)
        self._known = {base_code(code): code for code in codes if base_code(code) in known}
        self._identifier.set_languages(list(self._known))

    def knows(self, codes: Collection[str]) -> bool:
        return all(base_code(code) in self._known for code in codes)

    def __call__(self, text: str, among: Collection[str] | None = None) -> list[dict]:
        """Returns {"language": code, "confidence": percent} for each language, the most probable one first.

        `among` are the languages to choose from, by default all.
        """
        among = self.codes if among is None else list(among)
        known = {base: code for base, code in self._known.items() if code in among}
        if len(among) == 1 or not known:
            return [{"language": code, "confidence": 100.0} for code in among[:1]]
        ranks = [(known[base], share) for base, share in self._identifier.rank(text) if base in known]
        total = sum(share for _, share in ranks) or 1.0
        return [{"language": code, "confidence": round(float(100 * share / total), 1)} for code, share in ranks]
