"""Annotations of training pairs: weights in the loss, links between words, and rewards.

An annotation file has a line for each pair: a number, or links SOURCE-TARGET of words numbered from
0 (the Pharaoh format).
"""

import functools
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int, Int32, UInt16

from transformer.data.sources import Source
from transformer.data.sources.lines import count_noun, parse_number, read_text_file
from transformer.data.sources.mixture import MixedSource
from transformer.data.sources.source import DocumentSource
from transformer.support.errors import UserError
from transformer.support.special_tokens import WORD_START

_LINK = re.compile(r"(\d{1,4})([-?p])(\d{1,4})")  # 0-1 is sure; 0?1 and 0p1 are possible
# The fraction of the pairs whose links may name words that their sentences do not have.
_MAX_OUTSIDE = 0.01
_MAX_FLOAT32 = float(np.finfo(np.float32).max)

PairNumbers = Int[np.ndarray, " N"]  # indices into the pairs of a corpus
# The concatenated tokens of sentences, and the number of tokens of each sentence.
Sequences = tuple[Int32[np.ndarray, " _"], Int32[np.ndarray, " _"]]


class Annotations(NamedTuple):
    """The annotations of N pairs.

    weights: the weight of each pair in the loss; None if no pair has a weight.
    rewards: the score of each candidate by a metric; None if no pair has a reward.
    links: (source word, target word) of each link of each pair; None if no pair has links.
    starts: for source and target, the mask of the tokens that begin a word.
    """

    weights: Float32[np.ndarray, " N"] | None = None
    rewards: Float32[np.ndarray, " N"] | None = None
    links: Sequence[UInt16[np.ndarray, "_ 2"]] | None = None
    starts: Sequence[Bool[np.ndarray, " _"]] = ()

    def link_tokens(
        self,
        sides: Sequence[Sequences],
        rows: Int[np.ndarray, " N"],
        firsts: Sequence[Int[np.ndarray, " N"]],
        shape: tuple[int, int, int],
    ) -> Bool[np.ndarray, "B T S"]:
        """Returns the mask of target and source tokens that belong to linked words.

        `firsts` gives the first position of each sentence in its row. Links of words that the
        sentences do not have are left out.
        """
        assert self.links is not None
        mask = np.zeros(shape, bool)
        words = self._number_words(sides)

        for row, links, sources, targets, source_first, target_first in zip(
            rows, self.links, *words, *firsts, strict=True
        ):
            # The links of the pair, as a matrix of words.
            num_words = targets.max(initial=-1) + 1, sources.max(initial=-1) + 1
            links = links[(links < num_words[::-1]).all(axis=1)]
            linked_words = np.zeros(num_words, bool)
            linked_words[links[:, 1], links[:, 0]] = True

            # Each token takes the links of its word.
            linked_tokens = linked_words[targets][:, sources]  # (target tokens, source tokens)
            target_positions = slice(target_first, target_first + len(targets))
            source_positions = slice(source_first, source_first + len(sources))
            mask[row, target_positions, source_positions] = linked_tokens
        return mask

    def check_links(self, sides: Sequence[Sequences]) -> None:
        """Raises UserError if the links of too many pairs name words that their sentences lack."""
        assert self.links is not None
        num_outside = 0
        words = self._number_words(sides)
        for links, *numbers in zip(self.links, *words, strict=True):
            num_words = [words_of_side.max(initial=-1) + 1 for words_of_side in numbers]
            num_outside += bool((links >= num_words).any())
        if num_outside > _MAX_OUTSIDE * len(self.links):
            num_pairs = count_noun(len(self.links), "pair")
            raise UserError(
                f"config.data.mixture: in {num_outside} of {num_pairs}, links name words that the "
                "sentences do not have; align the words that spaces separate in these texts"
            )

    def _number_words(self, sides: Sequence[Sequences]) -> list[list[Int[np.ndarray, " _"]]]:
        """Returns the word number of each token of each sentence of each side, without EOS."""
        words = []
        for (tokens, lengths), starts in zip(sides, self.starts, strict=True):
            sentences = np.split(tokens, np.cumsum(lengths))[:-1]

            # end-of-sentence is not a part of a word
            words.append([number_words(starts[sentence[:-1]]) for sentence in sentences])
        return words


def number_words(starts: Bool[np.ndarray, " T"]) -> Int[np.ndarray, " T"]:
    """Returns the word number of each token, given the mask of the tokens that begin a word."""
    numbers = np.cumsum(starts)
    return numbers - numbers[:1]  # some vocabularies do not mark the first word


def word_starts(pieces: Sequence[str]) -> Bool[np.ndarray, " V"]:
    """Returns the mask of the tokens that begin a word.

    If a vocabulary does not mark the beginnings of words, each token is a word.
    """
    starts = np.array([piece.startswith(WORD_START) for piece in pieces])
    return starts if starts.any() else np.ones(len(pieces), bool)


def read_annotations(source: MixedSource) -> dict[str, np.ndarray]:
    """Reads the weights, rewards and links of all pairs, if any pairs have them.

    `weights` and `rewards` have a row for each pair. So has `link_spans`: the begin and end of the
    rows of the pair in `links`. Raises UserError for an unusable file.
    """
    arrays = {}
    labels = [corpus.label for corpus in source.corpora]
    for name, key in (("weights", "pair_weights"), ("rewards", "rewards")):
        paths = source.paths(key)
        if any(paths):
            least = 0.0 if name == "weights" else -math.inf
            numbers = functools.partial(read_numbers, least=least)
            arrays[name] = np.concatenate([*map(numbers, paths, source.sources, labels)])

    paths = source.paths("alignments")
    if any(paths):
        links = list(itertools.chain(*map(read_links, paths, source.sources, labels)))
        counts = list(map(len, links))
        if not any(counts):
            raise UserError("config.data.mixture: the files of alignments have no link")

        # The links of all pairs follow each other in one array.
        ends = np.cumsum(counts)
        arrays["links"] = np.array([*itertools.chain(*links)], np.uint16)
        arrays["link_spans"] = np.stack([ends - counts, ends], axis=1)  # (N, 2)
    return arrays


def read_numbers(
    path: Path | None, source: Source, label: str, least: float
) -> Float32[np.ndarray, " N"]:
    """Reads the number of each pair of a corpus, a weight or a reward; 1 without a file.

    Raises UserError for an unusable file, or for a number below `least`.
    """
    if path is None:
        return np.ones(len(source), np.float32)
    numbers = []
    for where, line in _read_lines(path, source, label):
        number = parse_number(line)
        if not (abs(number) <= _MAX_FLOAT32 and number >= least):
            limit = "at least 0" if least == 0 else "and finite"
            raise UserError(f"{where}: '{line:.40}' must be a number, {limit}")
        numbers.append(number)
    return np.array(numbers, np.float32)


def check_candidates(source: Source, count: int) -> None:
    """Raises UserError unless each source is in exactly `count` consecutive pairs."""
    first = 0
    for _, pairs in itertools.groupby(source, key=lambda pair: pair[0].strip()):
        size = sum(1 for _ in pairs)
        if size != count:
            raise UserError(
                f"{source.where(first, 0)}: begins {count_noun(size, 'line')} with one source; "
                f"config.batch.candidates={count} needs that number of lines for each source"
            )
        first += size


def read_links(path: Path | None, source: Source, label: str) -> list[list[tuple[int, int]]]:
    """Reads the links, sure and possible, of each pair of a corpus; none without a file.

    Raises UserError for an unusable file.
    """
    if path is None:
        return [[]] * len(source)
    lines = _read_lines(path, source, label)
    return [[link[:2] for link in parse_links(line, where)] for where, line in lines]


def parse_links(line: str, where: str) -> list[tuple[int, int, bool]]:
    """Returns (source word, target word, is sure) of each link.

    Raises UserError, with `where`, for anything else.
    """
    links = []
    for part in line.split():
        match = _LINK.fullmatch(part)
        if not match:
            raise UserError(f"{where}: {part:.40} is not a link such as 0-1, or 0?1 (possible)")
        links.append((int(match[1]), int(match[3]), match[2] == "-"))
    return links


def _read_lines(path: Path, source: Source, label: str) -> Iterator[tuple[str, str]]:
    """Yields the position and text of the line of each pair.

    The file may also have a line for each blank line between documents. Raises UserError if it has
    another number of lines.
    """
    lines = list(enumerate(read_text_file(path), start=1))

    # Blank lines of a source with documents are not pairs.
    lines_of_pairs = lines
    if isinstance(source, DocumentSource) and len(lines) == len(source.source):
        lines_of_pairs = list(itertools.compress(lines, source.mask))
    if len(lines_of_pairs) != len(source):
        num_lines = count_noun(len(lines), "line")
        num_pairs = count_noun(len(source), "pair")
        raise UserError(f"{path}: has {num_lines} for {num_pairs} of {label}")
    for number, line in lines_of_pairs:
        yield f"{path}, line {number}", line
