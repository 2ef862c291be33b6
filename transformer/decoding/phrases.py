"""Phrases in texts, and the tokens that end banned ones, whatever the segmentation.

A phrase begins a word at the start of a text and after a character that is no letter, digit or underscore, or belongs
to a script without spaces between words.
"""

import functools
import re
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int

from transformer.data.tokenizers.vocabulary import Vocabulary
from transformer.decoding.translation import encode
from transformer.special_tokens import PAD, SPECIAL, UNK

# Thai and Lao, Burmese, Khmer, Chinese and Japanese.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
WORD = re.compile(rf"[^\W{_UNSPACED}]")  # belongs to the word of a neighbour of this kind
_MULTIPLIERS = (0x9E3779B1, 0x85EBCA77)  # of two polynomial hashes modulo 2^32


def is_boundary(text: str, i: int) -> bool:
    """Tells whether a phrase may begin or end before the i-th character: at an end of the text or of a word."""
    return i in (0, len(text)) or not (WORD.match(text[i - 1]) and WORD.match(text[i]))


class Spelling:
    """The texts of a vocabulary's tokens, from which the search computes hashes of the ends of its hypotheses.

    texts: those that the tokens add to an output.
    table: for each token: two hashes of its text; two without its first character if that is a space; the factors by
      which it multiplies the hashes of a text before it; whether a phrase after it does not begin a word; whether its
      first character is a space.
    """

    texts: Sequence[str]
    table: Int[np.ndarray, "V 8"]

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        # Between two other tokens, since decoding strips spaces at the ends. A lone space is stripped too.
        alone = vocabulary.decode([[token] for token in range(vocabulary.size)])
        other = next(token for token in range(SPECIAL, vocabulary.size) if alone[token])
        one, two = vocabulary.decode([[other], [other, other]])
        between = vocabulary.decode([[other, token, other] for token in range(vocabulary.size)])
        self.texts = [text[len(one) : len(one) - len(two)] for text in between]
        self._tokens: dict[str, list[int]] = {}
        for token, text in enumerate(self.texts):
            self._tokens.setdefault(text, []).append(token)
        self._longest = max(map(len, self._tokens))
        factors = [[pow(multiplier, len(text), 1 << 32) for multiplier in _MULTIPLIERS] for text in self.texts]
        has_space = [text.startswith(" ") for text in self.texts]
        in_word = [token == PAD or bool(WORD.match(text[-1:])) for token, text in enumerate(self.texts)]
        hashes = [[*_hashes(text), *_hashes(text.removeprefix(" "))] for text in self.texts]
        self._rules_of = functools.lru_cache(maxsize=1024)(self._find_rules)
        self.table = np.column_stack([hashes, _as_int32(factors), in_word, has_space]).astype(np.int32)

    def normalize(self, name: str, phrases: Iterable[str]) -> list[str]:
        """Returns the phrases as outputs would have them, without those that no output can have."""
        encoded = [encode(self._vocabulary, name, phrase)[:-1] for phrase in phrases]
        texts = self._vocabulary.decode([tokens for tokens in encoded if UNK not in tokens])
        return [text for text in map(str.strip, texts) if text]

    def rules(self, phrases: Iterable[str]) -> list[list[int]]:
        """Returns the tokens that end a phrase, with the hashes of the rest before, and whether that must begin a word.

        A token that has the whole phrase after a space needs nothing before it.
        """
        return [rule for phrase in phrases for rule in self._rules_of(phrase)]

    def _find_rules(self, phrase: str) -> list[list[int]]:
        needs_start = int(bool(WORD.match(phrase)))
        rules = [[token, *_hashes(""), 0] for token in self._tokens.get(f" {phrase}", ())]
        for i in range(max(len(phrase) - self._longest, 0), len(phrase)):
            rules += [[token, *_hashes(phrase[:i]), needs_start] for token in self._tokens.get(phrase[i:], ())]
        return rules

    def ended(self, tokens: Sequence[int], phrases: Sequence[str]) -> str | None:
        """Returns a phrase that one of the tokens ends, after those before it, or None."""
        texts = ["".join(self.texts[token] for token in tokens[:end]) for end in range(1, len(tokens) + 1)]
        ends = ((phrase, text) for phrase in phrases for text in texts if text.endswith(phrase))
        return next((phrase for phrase, text in ends if is_boundary(text, len(text) - len(phrase))), None)


spelling_of = functools.lru_cache(maxsize=8)(Spelling)


def _hashes(text: str) -> list[int]:
    hashes = [0, 0]
    for character in text:
        hashes = [value * multiplier + ord(character) for value, multiplier in zip(hashes, _MULTIPLIERS, strict=True)]
    return _as_int32([value % (1 << 32) for value in hashes]).tolist()


def _as_int32(values: Sequence) -> Int[np.ndarray, "..."]:
    return np.array(values, np.uint32).view(np.int32)
