"""Trees in the format of the Penn Treebank, as pairs of sentences and linearized trees.

A tree may take several lines, and a line may have several trees. Function tags and indices are cut
from labels (`NP-SBJ-1` becomes `NP`). Traces are removed, with the brackets that become
empty. The outermost bracket is removed if it has no label, or one of `OUTERMOST`.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from scripts.datasets.folder import LanguagePair, write_record
from transformer.data.sources.lines import read_text_file
from transformer.decoding.trees.linearized import LEAF, PUNCTUATION, is_leaf, is_open
from transformer.support import files
from transformer.support.errors import UserError

OUTERMOST = ("", "TOP", "ROOT", "S1")
TRACE = "-NONE-"
_TOKENS = re.compile(r"[()]|[^()\s]+")


def linearize(symbols: Iterable[str]) -> str:
    """Returns the linearized tree of symbols whose leaves are tags."""
    return " ".join(
        LEAF if is_leaf(symbol) and symbol not in PUNCTUATION else symbol for symbol in symbols
    )


# The leaves of the target side, by --leaves.
LEAVES = {"XX": linearize, "tags": " ".join}


class Tree(NamedTuple):
    """A sentence and its tree: symbols as in `linearized`, in which the leaves are tags."""

    words: list[str]
    symbols: list[str]


class _Bracket:
    """A bracket of a file that is not closed yet.

    label: None before its label, or its content without one.
    word: the word of a leaf.
    """

    def __init__(self, line: int) -> None:
        self.line = line
        self.label: str | None = None
        self.word: str | None = None
        self.symbols: list[str] = []
        self.words: list[str] = []
        self.is_empty = True  # without a word or a bracket, even a trace


def get_trees(
    pair: LanguagePair, sources: dict[str, Sequence[str]], leaves: str, output: Path
) -> dict[str, Any]:
    """Writes the trees of each split as STEM.LANGUAGE pairs, and returns the folder's record.

    STEM.links has the `word_links` of each pair.

    sources: files and folders by split. A folder has its files `*.mrg`, of all its subfolders.
    leaves: a key of LEAVES.

    Raises UserError if a file cannot be read or has a damaged tree.
    """
    read = {}
    labels = set()
    with files.new_folder(output) as folder:
        for split, names in sources.items():
            read[split] = find_files(names)
            texts = [folder / f"{split}.{language}" for language in pair]
            with (
                texts[0].open("w", encoding="utf-8", newline="\n") as sentences,
                texts[1].open("w", encoding="utf-8", newline="\n") as linearized,
                (folder / f"{split}.links").open("w", encoding="utf-8", newline="\n") as links,
            ):
                for path in read[split]:
                    for tree in read_trees(path):
                        sentences.write(" ".join(tree.words) + "\n")
                        linearized.write(LEAVES[leaves](tree.symbols) + "\n")
                        links.write(word_links(tree.symbols) + "\n")
                        labels |= {symbol[1:] for symbol in tree.symbols if not is_leaf(symbol)}
        facts = {
            "by": "treebank",
            "read": {split: list(map(str, paths)) for split, paths in read.items()},
            "leaves": leaves,
            "labels": sorted(labels),
        }
        return write_record(folder, pair, facts)


def find_files(names: Sequence[str]) -> list[Path]:
    """Returns the files that are named, and the files `*.mrg` of folders in order.

    Raises UserError if there is no such file.
    """
    paths = []
    for name in filter(None, names):
        path = files.expand_user(name)
        if not path.is_dir():
            paths.append(path)
            continue
        inside = sorted(path.rglob("*.mrg"))
        if not inside:
            raise UserError(f"{path}: has no file *.mrg; name the files of trees")
        paths += inside
    return paths


def read_trees(path: Path) -> Iterator[Tree]:
    """Yields the trees of a file.

    Raises UserError, with the file and the line, if a tree is damaged.
    """
    opened: list[_Bracket] = []
    has_trees = False
    line = 0
    for line, text in enumerate(read_text_file(path), 1):
        for token in _TOKENS.findall(text):
            if token == "(":
                _open(path, line, opened)
            elif token == ")" and opened:
                tree = _close(path, line, opened)
                if tree is not None:
                    has_trees = True
                    yield tree
            elif not opened:
                _refuse(path, line, f"{token:.40} is outside of all brackets")
            else:
                _take_word(path, line, opened[-1], token)
    if opened:
        _refuse(path, opened[0].line, "the tree that begins here is not closed")
    if not has_trees:
        _refuse(path, line, "the file has no trees")


def word_links(symbols: Sequence[str]) -> str:
    """Returns the links of a linearized tree to the words of its sentence (Pharaoh format).

    A leaf has its word, an opening bracket its first word, and a closing bracket its last.
    """
    links = []
    word = 0  # the next one
    for position, symbol in enumerate(symbols):
        if is_leaf(symbol) or is_open(symbol):
            links.append(f"{word}-{position}")
        else:
            links.append(f"{word - 1}-{position}")
        word += is_leaf(symbol)
    return " ".join(links)


def cut_label(label: str) -> str:
    """Returns a label without function tags and indices. `-LRB-` and the like stay."""
    return label if label.startswith("-") else re.split("[-=]", label)[0]


def _open(path: Path, line: int, opened: list[_Bracket]) -> None:
    if opened:
        parent = opened[-1]
        if parent.word is not None:
            _refuse(path, line, f"a bracket has a word and a bracket: {parent.word:.40}")
        if parent.label is None:
            parent.label = ""
        if parent.label == "" and len(opened) > 1:
            _refuse(path, line, "a bracket within a tree has no label")
        parent.is_empty = False
    opened.append(_Bracket(line))


def _take_word(path: Path, line: int, bracket: _Bracket, token: str) -> None:
    """Takes a token as the label of a bracket, or as the word of a leaf."""
    if bracket.label is None:
        bracket.label = token
    elif not bracket.is_empty:
        what = "two words" if bracket.word is not None else "a bracket and a word without a tag"
        _refuse(path, line, f"a bracket has {what}: {token:.40}; a leaf is (TAG WORD)")
    else:
        bracket.word = token
        bracket.is_empty = False


def _close(path: Path, line: int, opened: list[_Bracket]) -> Tree | None:
    """Closes the last bracket. Returns its tree if it is the outermost one."""
    bracket = opened.pop()
    if bracket.is_empty:
        what = f"the word {bracket.label:.40} has no tag" if bracket.label else "a bracket is empty"
        _refuse(path, line, f"{what}; a leaf is (TAG WORD)")
    label = bracket.label
    symbols = bracket.symbols
    words = bracket.words
    if label and not cut_label(label):
        _refuse(path, line, f"the label {label:.40} begins with =")
    if bracket.word is not None:
        if label != TRACE:
            symbols = [cut_label(label)]
            words = [bracket.word]
    elif words and (opened or label not in OUTERMOST):
        label = cut_label(label)
        symbols = [f"({label}", *symbols, f"){label}"]
    if opened:
        opened[-1].symbols += symbols
        opened[-1].words += words
        return None
    if not words:
        _refuse(path, line, "a tree has no words, only traces; remove it")
    return Tree(words, symbols)


def _refuse(path: Path, line: int, problem: str) -> NoReturn:
    raise UserError(f"{path}, line {line}: {problem}; correct it, or name a file of trees")
