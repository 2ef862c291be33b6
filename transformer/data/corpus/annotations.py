"""Annotations of training pairs: weights in the loss, and links between their words, with the files
that list them.

Such a file has a line for each pair: a number, or SOURCE-TARGET links of words numbered from 0 (the
format of Pharaoh).
"""

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int, Int32, UInt16

from transformer.data.sources import Source
from transformer.data.sources.lines import counted, parse_number, read_text_file
from transformer.data.sources.mixture import MixedSource
from transformer.data.sources.source import DocumentSource
from transformer.support.errors import UserError

LINK = re.compile(r"(\d{1,4})([-?p])(\d{1,4})")  # 0-1 is sure; 0?1 and 0p1 are possible
# fraction of the pairs whose links may name words that their sentences do not have
_MAX_OUTSIDE = 0.01

# concatenated tokens; tokens of each sentence
Sequences = tuple[Int32[np.ndarray, " _"], Int32[np.ndarray, " _"]]


class Annotations(NamedTuple):
    """The annotations of N pairs.

    weights: of each pair in the loss; None if none has any.
    links: (source word, target word) of each pair; None if none has any.
    starts: for source and target, the mask of the tokens that begin a word.
    """

    weights: Float32[np.ndarray, " N"] | None = None
    links: Sequence[UInt16[np.ndarray, "_ 2"]] | None = None
    starts: Sequence[Bool[np.ndarray, " _"]] = ()

    def link_tokens(
        self,
        sides: Sequence[Sequences],
        rows: Int[np.ndarray, " N"],
        firsts: Sequence[Int[np.ndarray, " N"]],
        shape: tuple[int, int, int],
    ) -> Bool[np.ndarray, "B T S"]:
        """Returns which tokens belong to linked words; `firsts` are the positions of the sentences
        in their rows.

        Leaves out links of words that the sentences do not have.
        """
        linked = np.zeros(shape, bool)
        words = [words_of(side, starts) for side, starts in zip(sides, self.starts, strict=True)]
        for row, links, sources, targets, source, target in zip(
            rows, self.links, *words, *firsts, strict=True
        ):
            by_word = np.zeros((targets.max(initial=-1) + 1, sources.max(initial=-1) + 1), bool)
            links = links[(links < by_word.shape[::-1]).all(axis=1)]
            by_word[links[:, 1], links[:, 0]] = True
            region = linked[row, target : target + len(targets), source : source + len(sources)]
            region[:] = by_word[targets][:, sources]
        return linked

    def check_links(self, sides: Sequence[Sequences]) -> None:
        """Raises UserError if too many of the pairs have links of words that their sentences do not
        have.
        """
        words = zip(
            *(words_of(side, starts) for side, starts in zip(sides, self.starts, strict=True)),
            strict=True,
        )
        counts = [[numbers.max(initial=-1) + 1 for numbers in pair] for pair in words]
        outside = sum(
            bool((links >= count).any()) for links, count in zip(self.links, counts, strict=True)
        )
        if outside > _MAX_OUTSIDE * len(self.links):
            raise UserError(
                f"config.data.mixture: in {outside} of {counted(len(self.links), 'pair')}, links name words that the "
                "sentences do not have; align the words that spaces separate in these texts"
            )


def words_of(side: Sequences, starts: Bool[np.ndarray, " V"]) -> list[Int[np.ndarray, " _"]]:
    """Returns the number of the word of each token of each sentence, without end-of-sentence."""
    tokens, lengths = side
    return [
        number_words(starts[sentence[:-1]])
        for sentence in np.split(tokens, np.cumsum(lengths))[:-1]
    ]


def number_words(starts: Bool[np.ndarray, " T"]) -> Int[np.ndarray, " T"]:
    """Returns the number of the word of each token, given which tokens begin one."""
    numbers = np.cumsum(starts)
    return numbers - numbers[:1]  # some vocabularies do not mark the first word


def word_starts(pieces: Sequence[str]) -> Bool[np.ndarray, " V"]:
    """Returns whether each token begins a word.

    In a vocabulary that marks no beginnings, each token is a word.
    """
    starts = np.array([piece.startswith("\u2581") for piece in pieces])
    return starts if starts.any() else np.ones(len(pieces), bool)


def read_annotations(source: MixedSource) -> dict[str, np.ndarray]:
    """Returns the weights and links of all pairs, if any have them. Raises UserError for an
    unusable file.

    `weights` has a row for each pair, and so has `link_spans`: the begin and end of its rows in
    `links`.
    """
    arrays = {}
    labels = [corpus.label for corpus in source.corpora]
    if any(paths := source.paths("pair_weights")):
        arrays["weights"] = np.concatenate(list(map(read_weights, paths, source.sources, labels)))
    if any(paths := source.paths("alignments")):
        links = list(itertools.chain(*map(read_links, paths, source.sources, labels)))
        counts = list(map(len, links))
        if not any(counts):
            raise UserError("config.data.mixture: the files of alignments have no link")
        ends = np.cumsum(counts)
        arrays["links"] = np.array([*itertools.chain(*links)], np.uint16)
        arrays["link_spans"] = np.stack([ends - counts, ends], axis=1)
    return arrays


def read_weights(path: Path | None, source: Source, label: str) -> Float32[np.ndarray, " N"]:
    """Reads the weight in the loss of each pair of a corpus; without a file they have 1.

    Raises UserError for an unusable file.
    """
    if path is None:
        return np.ones(len(source), np.float32)
    weights = []
    for where, line in _read_lines(path, source, label):
        weights.append(parse_number(line))
        if not 0 <= weights[-1] < math.inf:
            raise UserError(f"{where}: '{line:.40}' must be a number, at least 0")
    return np.array(weights, np.float32)


def read_links(path: Path | None, source: Source, label: str) -> list[list[tuple[int, int]]]:
    """Reads the links, sure and possible, of each pair of a corpus; without a file they have none.

    Raises UserError for an unusable file.
    """
    if path is None:
        return [[]] * len(source)
    return [
        [link[:2] for link in parse_links(line, where)]
        for where, line in _read_lines(path, source, label)
    ]


def parse_links(line: str, where: str) -> list[tuple[int, int, bool]]:
    """Returns (source word, target word, is sure) of each link.

    Raises UserError, with `where`, for anything else.
    """
    links = []
    for part in line.split():
        if not (match := LINK.fullmatch(part)):
            raise UserError(f"{where}: {part:.40} is not a link such as 0-1, or 0?1 (possible)")
        links.append((int(match[1]), int(match[3]), match[2] == "-"))
    return links


def _read_lines(path: Path, source: Source, label: str) -> Iterator[tuple[str, str]]:
    """Yields the position and text of the line of each pair.

    The file may have a line for each blank line between documents too. Raises UserError if there
    are more or fewer lines.
    """
    lines = list(enumerate(read_text_file(path), start=1))
    selected = lines
    if isinstance(source, DocumentSource) and len(lines) == len(source.source):
        selected = list(itertools.compress(lines, source.kept))
    if len(selected) != len(source):
        raise UserError(
            f"{path}: has {counted(len(lines), 'line')} for {counted(len(source), 'pair')} of {label}"
        )
    for number, line in selected:
        yield f"{path}, line {number}", line
