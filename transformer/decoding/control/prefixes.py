"""Prefixes that end within a word: the last word may be spelled by any tokens, and continue.

A search that forced the best segmentation of "Mon" would rule out the token "Montag". So only the
tokens before the last word are forced. The characters of the last word, its fragment, are matched
instead.
"""

import bisect
from collections.abc import Sequence

from transformer.decoding.control.phrases import Spelling

MAX_FRAGMENT = 32  # characters; in scripts without spaces a fragment begins within the text


def split_fragment(tokens: Sequence[int], spelling: Spelling) -> tuple[list[int], str]:
    """Returns the tokens before the last word of a prefix, and the characters of that word, the
    space included.

    A vocabulary whose tokens are all whole words, such as integers, has no fragments.
    """
    tokens, fragment = list(tokens), ""
    has_parts = spelling.edges[:, 0].any()
    while has_parts and tokens and not fragment.startswith(" "):
        text = spelling.texts[tokens[-1]]
        # A token of a single byte has no characters.
        if not text or "\ufffd" in text or len(fragment) + len(text) > MAX_FRAGMENT:
            break
        tokens.pop()
        fragment = text + fragment
    return tokens, fragment


def fragment_states(num_forced: int, fragment: str, spelling: Spelling) -> list[list[int]]:
    """Returns the states of `match_fragment`: state i has the tokens that may follow the first i
    characters.

    A state is [num_forced, first, end + 1, *tokens]. Tokens with ranks from `first` to before `end`
    in `Spelling.ranks` begin with the rest of the fragment. Each of `tokens` is a beginning of the
    rest, after which tokens can spell what remains.
    """
    can_finish = [False] * len(fragment) + [True]
    states = []
    for begin in reversed(range(len(fragment))):
        tokens = []
        for stop in range(begin + 1, len(fragment) + 1):
            token = spelling.token_of.get(fragment[begin:stop])
            if token is not None and can_finish[stop]:
                tokens.append(token)
        can_finish[begin] = bool(tokens)
        rest = fragment[begin:]
        first = bisect.bisect_left(spelling.sorted_texts, rest)
        end = bisect.bisect_left(spelling.sorted_texts, rest + chr(0x10FFFF))
        states.append([num_forced, first, end + 1, *tokens])
    return states[::-1]
