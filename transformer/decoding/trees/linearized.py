"""Linearized trees: the brackets of a sentence's parse as a line of symbols (Vinyals et al. 2015).

`(S (NP XX XX )NP (VP XX )VP . )S` is the linearized tree of
`(TOP (S (NP (NNP Mr.) (NNP Vinken)) (VP (VBZ smokes)) (. .)))`. The line has no words: the sentence
gives them. Both brackets have the label, and the outermost TOP is left out. A leaf is XX in place
of its tag. Tags of punctuation stay, because EVALB deletes their words from the sentence: with them
a linearized tree is all that EVALB's rules need.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

LEAF = "XX"  # in place of a tag
PUNCTUATION = (",", ":", "``", "''", ".")  # tags of words that EVALB deletes
TOP = "TOP"


class Bracket(NamedTuple):
    """A constituent. It has the leaves from `start` on, up to `end`, which is not part of it."""

    label: str
    start: int
    end: int


class Brackets(NamedTuple):
    """The leaves of a tree, and its brackets: a bracket comes after all brackets within it."""

    leaves: list[str]
    brackets: list[Bracket]


def is_open(symbol: str) -> bool:
    return symbol.startswith("(")


def is_close(symbol: str) -> bool:
    return symbol.startswith(")")


def is_leaf(symbol: str) -> bool:
    return not is_open(symbol) and not is_close(symbol)


def read_brackets(symbols: Iterable[str]) -> Brackets:
    """Returns the leaves and the brackets of a linearized tree.

    Raises ValueError if the brackets are not balanced, with equal labels.
    """
    leaves = []
    brackets = []
    opened = []  # labels, and the numbers of leaves before them
    for symbol in symbols:
        if is_open(symbol):
            opened.append((symbol[1:], len(leaves)))
        elif is_leaf(symbol):
            leaves.append(symbol)
        elif opened and opened[-1][0] == symbol[1:]:
            brackets.append(Bracket(*opened.pop(), len(leaves)))
        else:
            raise ValueError(f"{symbol} closes no bracket")
    if opened:
        raise ValueError(f"({opened[-1][0]} is not closed")
    return Brackets(leaves, brackets)


def fits(symbols: Sequence[str], num_leaves: int) -> bool:
    """True if the symbols are a tree with this number of leaves."""
    try:
        return len(read_brackets(symbols).leaves) == num_leaves
    except ValueError:
        return False


def repair(symbols: Sequence[str], num_leaves: int) -> list[str]:
    """Returns a tree with this number of leaves, for any symbols.

    Brackets are added at the beginning or the end until they are balanced. A closing bracket also
    closes all brackets within it. The last leaves are cut, or XX is added at the end of the
    outermost bracket. Brackets without leaves are left out. A tree that `fits` is unchanged, except
    for brackets without leaves.
    """
    added = []
    balanced = []
    opened = []  # labels
    for symbol in symbols:
        if is_open(symbol):
            opened.append(symbol[1:])
        elif is_close(symbol):
            # Without its opening bracket, it closes all open brackets and a new one around them.
            label = symbol[1:]
            if label not in opened:
                added.insert(0, f"({label}")
            while opened and opened[-1] != label:
                balanced.append(f"){opened.pop()}")
            if opened:
                opened.pop()
        balanced.append(symbol)
    balanced = added + balanced + [f"){label}" for label in reversed(opened)]

    missing = num_leaves - sum(map(is_leaf, balanced))
    end = len(balanced)
    if balanced and is_close(balanced[-1]):
        end -= 1
    balanced[end:end] = [LEAF] * missing
    tree = []
    for symbol in balanced:
        if is_leaf(symbol):
            if num_leaves:
                tree.append(symbol)
                num_leaves -= 1
        elif is_close(symbol) and is_open(tree[-1]):
            tree.pop()
        else:
            tree.append(symbol)
    return tree


def print_tree(words: Iterable[str], symbols: Iterable[str]) -> str:
    """Returns the tree in the format of treebanks, such as `(TOP (S (NP (XX It)) ...))`.

    The symbols are a tree with as many leaves as there are words.
    """
    words = iter(words)
    parts = [f"({TOP}"]
    for symbol in symbols:
        if is_open(symbol):
            parts.append(f" {symbol}")
        elif is_close(symbol):
            parts.append(")")
        else:
            parts.append(f" ({symbol} {next(words)})")
    return "".join([*parts, ")"])
