"""Phrases in texts, and the tokens that end banned phrases in any segmentation.

A phrase may begin at the start of a text, and after a character that is not a letter, digit or
underscore, or that belongs to a script without spaces between words.
"""

import collections
import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np

from transformer.data.tokenizers.vocabulary import Vocabulary
from transformer.decoding.translation import encode
from transformer.support.errors import UserError
from transformer.support.special_tokens import SPECIAL, UNK

# In a rule of a banned phrase: a character that does not belong to a word, or no character.
BOUNDARY = np.iinfo(np.int32).max
# Thai and Lao, Burmese, Khmer, Chinese and Japanese.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
# Combining marks, such as the vowel signs of Hindi, belong to the word of the character before.
_MARKS = "".join(
    mark
    for mark in map(chr, range(0x300, 0x2000))
    if unicodedata.category(mark) in ("Mn", "Mc") and not re.match(f"[{_UNSPACED}]", mark)
)
# Two such characters in sequence belong to one word.
WORD = re.compile(rf"[^\W{_UNSPACED}]|[{_MARKS}]")


def is_boundary(text: str, i: int) -> bool:
    """True if a phrase may begin or end before the i-th character.

    This is at an end of the text or of a word.
    """
    return i in (0, len(text)) or not (WORD.match(text[i - 1]) and WORD.match(text[i]))


def find_words(text: str, words: str, start: int = 0) -> int:
    """Returns the index of the words in the text, between boundaries, from `start` on, or -1."""
    index = text.find(words, start)
    while index >= 0:
        if is_boundary(text, index) and is_boundary(text, index + len(words)):
            break
        index = text.find(words, index + 1)
    return index


class Spelling:
    """The texts of a vocabulary's tokens, by which a search knows the texts of its hypotheses.

    texts: the text that each token adds to an output.
    table: (V, W), the characters of each token, the last one first, filled up with 0: see `_codes`.
    edges: (V, 2), whether the first and the last character of each token belong to a word.
    lengths: (V,), the number of characters of each token.
    sorted_texts: the texts of the tokens without special ones, in order.
    ranks: (V,), the place of each token in sorted_texts, or -1.
    token_of: a token with each text.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        size = vocabulary.size

        # Decoding strips spaces at the ends of a text, also from a token that is only a space. So
        # each token is decoded between two others.
        other = next(token for token in range(SPECIAL, size) if any(vocabulary.decode([[token]])))
        one, two = vocabulary.decode([[other], [other, other]])
        between = vocabulary.decode([[other, token, other] for token in range(size)])
        self.texts = [text[len(one) : len(one) - len(two)] for text in between]

        self._characters = set().union(*self.texts)

        # For each text between two boundaries: the tokens that have it, and its start in them.
        self._parts = collections.defaultdict(list)
        for token, text in enumerate(self.texts):
            boundaries = [i for i in range(len(text) + 1) if is_boundary(text, i)]
            for start, end in itertools.combinations(boundaries, 2):
                self._parts[text[start:end]].append((token, start))

        # The characters as arrays, for the compiled search.
        self.lengths = np.array(list(map(len, self.texts)), np.int32)
        self.table = np.zeros((size, self.lengths.max()), np.int32)
        self.edges = np.zeros((size, 2), bool)
        for token, text in enumerate(self.texts):
            self.table[token, : len(text)] = _codes(text)
            self.edges[token] = [WORD.match(edge) is not None for edge in (text[:1], text[-1:])]

        # In this order, the tokens that begin with the same characters follow each other.
        order = sorted(range(SPECIAL, size), key=self.texts.__getitem__)
        self.sorted_texts = [self.texts[token] for token in order]
        self.ranks = np.full(size, -1, np.int32)
        self.ranks[order] = np.arange(len(order))
        self.token_of = dict(zip(self.sorted_texts, order, strict=True))

    def normalize(self, name: str, phrases: Iterable[str]) -> list[str]:
        """Returns the phrases as outputs spell them, without phrases that no output can have."""
        encoded = [encode(self._vocabulary, name, phrase)[:-1] for phrase in phrases]
        texts = self._vocabulary.decode([tokens for tokens in encoded if UNK not in tokens])
        return [text for text in map(str.strip, texts) if text]

    def rules(self, name: str, phrases: Iterable[str]) -> list[list[int]]:
        """Returns the rules of `forbid_banned_phrases`.

        A rule is a token that ends a phrase, and the characters of the phrase before the token.
        Raises UserError, which has the name, for a character that no token has as a whole.
        """
        rules = []
        for phrase in phrases:
            divided = set(phrase) - self._characters
            if divided:
                raise UserError(
                    f"{name}: {phrase!r:.60} cannot be banned, because the vocabulary has only "
                    f"bytes of {min(divided)}; leave it out"
                )
            before = [BOUNDARY] if WORD.match(phrase) else []
            for i in range(len(phrase)):
                # Tokens that have the rest of the phrase: from their start, after its first i
                # characters, or anywhere, if it is the whole phrase.
                for token, start in self._parts.get(phrase[i:], ()):
                    if start == 0:
                        rules.append([token, *_codes(phrase[:i]), *before])
                    elif i == 0:
                        rules.append([token])
        longest = max(map(len, rules), default=0)
        return [rule + [0] * (longest - len(rule)) for rule in rules]

    def find_phrase(self, tokens: Sequence[int], phrases: Sequence[str]) -> str | None:
        """Returns a phrase that ends with one of the tokens, or None."""
        texts = list(itertools.accumulate(self.texts[token] for token in tokens))
        for phrase, text in itertools.product(phrases, texts):
            if text.endswith(phrase) and is_boundary(text, len(text) - len(phrase)):
                return phrase
        return None


spelling_of = functools.lru_cache(maxsize=8)(Spelling)


def _codes(text: str) -> list[int]:
    """Returns the code points of the characters, the last one first.

    A code is negative if the character does not belong to a word.
    """
    return [ord(x) if WORD.match(x) else -ord(x) for x in reversed(text)]
