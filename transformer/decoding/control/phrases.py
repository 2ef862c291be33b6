"""Phrases in texts, and the tokens that end banned ones, whatever the segmentation.

A phrase begins a word at the start of a text and after a character that is no letter, digit or
underscore, or belongs to a script without spaces between words.
"""

import collections
import functools
import itertools
import re
from collections.abc import Iterable, Sequence

import numpy as np

from transformer.data.tokenizers.vocabulary import Vocabulary
from transformer.decoding.translation import encode
from transformer.support.special_tokens import SPECIAL, UNK

# in a rule of a banned phrase: a character that is no part of a word, or none
BOUNDARY = np.iinfo(np.int32).max
# Thai and Lao, Burmese, Khmer, Chinese and Japanese.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
WORD = re.compile(rf"[^\W{_UNSPACED}]")  # belongs to the word of a neighbour of this kind


def is_boundary(text: str, i: int) -> bool:
    """Tells whether a phrase may begin or end before the i-th character: at an end of the text or
    of a word.
    """
    return i in (0, len(text)) or not (WORD.match(text[i - 1]) and WORD.match(text[i]))


def find_words(text: str, words: str, start: int = 0) -> int:
    """Returns where the words begin in the text, from `start` on, between boundaries; -1 if
    nowhere.
    """
    while (start := text.find(words, start)) >= 0:
        if is_boundary(text, start) and is_boundary(text, start + len(words)):
            break
        start += 1
    return start


class Spelling:
    """The texts of a vocabulary's tokens, from which the search knows the characters of its
    hypotheses.

    texts: those that the tokens add to an output.
    table: (V, W), the characters of each token, the last one first, filled up with 0: see `_codes`.
    edges: (V, 2), whether the first and the last character of each token belong to a word.
    lengths: (V,), the number of characters of each token.
    sorted_texts: the texts of the tokens without special ones, in order; ranks: (V,), the place of
        each there, or -1.
    token_of: a token with each text.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        # Between two other tokens, since decoding strips spaces at the ends. A lone space is
        # stripped too.
        other = next(
            token for token in range(SPECIAL, vocabulary.size) if any(vocabulary.decode([[token]]))
        )
        one, two = vocabulary.decode([[other], [other, other]])
        between = vocabulary.decode([[other, token, other] for token in range(vocabulary.size)])
        self.texts = [text[len(one) : len(one) - len(two)] for text in between]
        # by the text between two boundaries, the token and its start there
        self._parts = collections.defaultdict(list)
        for token, text in enumerate(self.texts):
            boundaries = [i for i in range(len(text) + 1) if is_boundary(text, i)]
            for start, end in itertools.combinations(boundaries, 2):
                self._parts[text[start:end]].append((token, start))
        self.lengths = np.array(list(map(len, self.texts)), np.int32)
        self.table = np.zeros((vocabulary.size, self.lengths.max()), np.int32)
        for row, text in zip(self.table, self.texts, strict=True):
            row[: len(text)] = _codes(text)
        order = sorted(range(SPECIAL, vocabulary.size), key=lambda token: self.texts[token])
        self.sorted_texts = [self.texts[token] for token in order]
        self.ranks = np.full(vocabulary.size, -1, np.int32)
        self.ranks[order] = np.arange(len(order))
        self.token_of = {self.texts[token]: token for token in order}
        is_part = [
            [WORD.match(edge) is not None for edge in (text[:1], text[-1:])] for text in self.texts
        ]
        self.edges = np.array(is_part)

    def normalize(self, name: str, phrases: Iterable[str]) -> list[str]:
        """Returns the phrases as outputs would have them, without those that no output can have."""
        encoded = [encode(self._vocabulary, name, phrase)[:-1] for phrase in phrases]
        texts = self._vocabulary.decode([tokens for tokens in encoded if UNK not in tokens])
        return [text for text in map(str.strip, texts) if text]

    def rules(self, phrases: Iterable[str]) -> list[list[int]]:
        """Returns the rules of `forbid_banned_phrases`: each token that ends a phrase and the
        characters before it.
        """
        rules = []
        for phrase in phrases:
            before = [BOUNDARY] if WORD.match(phrase) else []
            for i in range(len(phrase)):
                for token, start in self._parts.get(phrase[i:], ()):
                    if start == 0:
                        rules.append([token, *_codes(phrase[:i]), *before])
                    elif i == 0:
                        rules.append([token])
        longest = max(map(len, rules), default=0)
        return [rule + [0] * (longest - len(rule)) for rule in rules]

    def ended(self, tokens: Sequence[int], phrases: Sequence[str]) -> str | None:
        """Returns a phrase that one of the tokens ends, after those before it, or None."""
        texts = list(itertools.accumulate(self.texts[token] for token in tokens))
        ends = ((phrase, text) for phrase in phrases for text in texts if text.endswith(phrase))
        return next(
            (phrase for phrase, text in ends if is_boundary(text, len(text) - len(phrase))), None
        )


spelling_of = functools.lru_cache(maxsize=8)(Spelling)


def _codes(text: str) -> list[int]:
    """Returns the code points of the characters, the last one first, negative for those that are no
    part of a word.
    """
    return [
        ord(character) if WORD.match(character) else -ord(character) for character in reversed(text)
    ]
