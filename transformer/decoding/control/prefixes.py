"""Prefixes that end within a word: the last word may be spelled by any tokens, and continue.

A search that forces the best segmentation of "Mon" rules out the token "Montag". So only the tokens
before the last word are forced. The characters of the last word, the fragment, are matched instead.
"""

import bisect
from collections.abc import Sequence

import numpy as np

from transformer.decoding.control.phrases import Spelling
from transformer.support.special_tokens import EOS, SPECIAL

MAX_FRAGMENT = 32  # characters; in scripts without spaces a fragment begins within the text


def split_fragment(tokens: Sequence[int], spelling: Spelling) -> tuple[list[int], str]:
    """Returns the tokens before the last word of a prefix, and the characters of that word.

    The characters include the space before the word. There are no fragments if all tokens of the
    vocabulary are whole words, such as integers.
    """
    tokens = list(tokens)
    fragment = ""
    has_parts = spelling.edges[:, 0].any()
    while has_parts and tokens and not fragment.startswith(" "):
        text = spelling.texts[tokens[-1]]

        # A token of a single byte has no characters.
        if not text or "\ufffd" in text or len(fragment) + len(text) > MAX_FRAGMENT:
            break
        tokens.pop()
        fragment = text + fragment
    return tokens, fragment


def ended_word(num_forced: int, spelling: Spelling) -> list[list[int]]:
    """Returns the state of `match_fragment` after which no token continues the last word."""
    # The tokens that begin with a space, and others that do not begin with a letter or digit.
    first = bisect.bisect_left(spelling.sorted_texts, " ")
    end = bisect.bisect_left(spelling.sorted_texts, "!")
    others = np.flatnonzero(
        ~spelling.edges[:, 0] & ~((spelling.ranks >= first) & (spelling.ranks < end))
    )
    others = others[(others >= SPECIAL) | (others == EOS)]
    return [[num_forced, first, end + 1, *others.tolist()]]


def fragment_states(num_forced: int, fragment: str, spelling: Spelling) -> list[list[int]]:
    """Returns the states of `match_fragment`: the tokens that may follow the first i characters.

    State i is [num_forced, first, end + 1, *tokens]. The tokens that begin with the rest of the
    fragment have ranks from `first` to `end` - 1 in `Spelling.ranks`. Each of `tokens` is a
    beginning of the rest, such that tokens can spell the characters after it.
    """
    # can_finish[i]: tokens can spell the characters from the i-th on.
    can_finish = [False] * len(fragment) + [True]
    states = []
    for begin in reversed(range(len(fragment))):
        # Tokens that spell some of the next characters.
        tokens = []
        for stop in range(begin + 1, len(fragment) + 1):
            token = spelling.token_of.get(fragment[begin:stop])
            if token is not None and can_finish[stop]:
                tokens.append(token)
        can_finish[begin] = bool(tokens)

        # Tokens that begin with all of the next characters, and may continue.
        rest = fragment[begin:]
        first = bisect.bisect_left(spelling.sorted_texts, rest)
        end = bisect.bisect_left(spelling.sorted_texts, rest + chr(0x10FFFF))
        states.append([num_forced, first, end + 1, *tokens])
    return states[::-1]
