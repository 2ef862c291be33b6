"""Sources of sentence pairs: the table of their kinds, and the functions that open and read them."""

import contextlib
import functools
import hashlib
import itertools
import json
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from transformer.config.types import Config
from transformer.data.sources import Source
from transformer.data.sources.lines import decode, is_blank, is_natural_number, read_text_file
from transformer.data.sources.mixture import MixedSource, listed_corpora
from transformer.data.sources.synthetic import SyntheticSource
from transformer.data.sources.text import IdsSource, TextSource
from transformer.data.sources.tfds import TfdsSource
from transformer.support import files
from transformer.support.errors import UserError

SPLITS = ("train", "valid", "test")
ORIGIN = "data.json"  # the record of how a folder of data was made, which `scripts.get_data` writes
# the word between two sentences of a document, of which the vocabulary makes a token
SEPARATOR = "<sep>"
# most consecutive pairs that are selected from a corpus larger than tokenizer.sample_size
_BLOCK = 1024

# The kinds that `data.source` can name. Each has `open(data, split)`, which returns a Source.
SOURCES = {"tfds": TfdsSource, "text": TextSource, "ids": IdsSource, "synthetic": SyntheticSource}


def open_source(data: Config, split: str) -> Source:
    """Opens a split as it is learned: see `data.mixture`, `data.exclude` and `data.context`.

    Raises UserError for unusable data.
    """
    if split == "train" and data.mixture:
        corpora = tuple(listed_corpora(data))
        for corpus in corpora:
            for key, path in corpus.annotations.items():
                if not path.is_file():
                    raise UserError(
                        f"config.data.mixture: {key}={path} of {corpus.label} is no file"
                    )
        sources = tuple(open_source(corpus.data, split) for corpus in corpora)
        return MixedSource(corpora, sources, data.mixture_temperature)
    source = _open_pairs(data, split)
    return DocumentSource(source, data.context) if data.context else source


def _open_pairs(data: Config, split: str) -> Source:
    """Opens a split, without the training pairs that `data.exclude` numbers."""
    source = SOURCES[data.source].open(data, split)
    if split != "train" or not (data.exclude or data.train_pairs):
        return source
    kept = np.ones(len(source), bool)
    if data.exclude:
        for line, text in enumerate(read_text_file(files.expanded(data.exclude)), start=1):
            number = text.partition("\t")[0]
            if not (is_natural_number(number) and 1 <= int(number) <= len(kept)):
                shown = (
                    f"line {line}: {number!r:.60} must be the number of a pair, 1 to {len(kept):,}"
                )
                raise UserError(f"config.data.exclude={data.exclude}: {shown}")
            kept[int(number) - 1] = False
    if data.train_pairs:
        kept = kept[: np.searchsorted(np.cumsum(kept), data.train_pairs) + 1]
    return SelectedPairs(source, kept)


def read_pairs(data: Config, split: str) -> tuple[list[str], list[str]]:
    """Reads a split as text, a sentence a line.

    Raises UserError if it is empty or a sentence is not UTF-8.
    """
    if split == "train" and data.mixture:
        raise UserError(
            "split train: is a mixture of corpora here; give the files of one of them instead"
        )
    source = _open_pairs(data, split)
    if not len(source):
        raise UserError(f"{source.name}: no sentences; name a split with at least one")
    texts, translations = zip(*decoded(source), strict=True)
    return list(texts), list(translations)


def decoded(source: Source) -> Iterator[tuple[str, str]]:
    """Yields the pairs as text.

    Raises UserError, with file and line, at the first side that is not UTF-8.
    """
    for index, pair in enumerate(source):
        yield tuple(decode(line, source.where(index, side)) for side, line in enumerate(pair))


def select_pairs(source: Source, limit: int) -> Iterator[tuple[str, str]]:
    """Yields at most `limit` pairs, in blocks spread evenly over the source, and skips those that
    are not UTF-8.
    """
    total = len(source)
    blocks = math.ceil(limit / _BLOCK)
    for index, pair in enumerate(source):
        block = ((index + 1) * blocks - 1) // total  # the last that starts at this index or before
        if total <= limit or index - block * total // blocks < limit // blocks:
            with contextlib.suppress(UnicodeDecodeError):
                yield pair[0].decode(), pair[1].decode()


@dataclass(frozen=True)
class _Selection:
    """The pairs of a source at which `kept` is true; none after its end."""

    source: Source

    def __len__(self) -> int:
        return len(self._numbers)

    def where(self, index: int, side: int) -> str:
        return self.source.where(int(self._numbers[index]), side)

    @functools.cached_property
    def _numbers(self) -> Int[np.ndarray, " M"]:
        return np.flatnonzero(self.kept)


@dataclass(frozen=True)
class SelectedPairs(_Selection):
    """A part of the pairs of a source."""

    kept: Bool[np.ndarray, " N"]

    @property
    def name(self) -> str:
        return f"{self.source.name}, {len(self):,} of {len(self.source):,} pairs"

    @property
    def identity(self) -> dict:
        return self.source.identity | {"kept": hashlib.sha256(self.kept.tobytes()).hexdigest()}

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return itertools.compress(self.source, self.kept)


@dataclass(frozen=True)
class DocumentSource(_Selection):
    """The pairs of a source, each after at most `context` pairs before it in its document, on both
    sides.

    Blank lines stand between documents (Tiedemann and Scherrer 2017).
    """

    context: int

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def identity(self) -> dict:
        return self.source.identity | {"context": self.context}

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        before = deque(maxlen=self.context + 1)
        separator = f" {SEPARATOR} ".encode()
        for pair in self.source:
            if all(map(is_blank, pair)):
                before.clear()
                continue
            before.append(pair)
            sides = zip(*before, strict=True)  # one that monolingual pairs do not have stays empty
            yield tuple(separator.join(side) if any(side) else b"" for side in sides)

    @functools.cached_property
    def kept(self) -> Bool[np.ndarray, " _"]:
        """False for blank lines."""
        return np.array([not all(map(is_blank, pair)) for pair in self.source], bool)


def read_origin(data: Config) -> dict[str, Any] | None:
    """Returns the record in the folder `data.path`; None if there is none."""
    path = files.expanded(data.path) / ORIGIN
    if not data.path or not path.is_file():
        return None
    with contextlib.suppress(ValueError):
        record = json.loads(path.read_bytes())
        if isinstance(record, dict) and {"made", "files"} <= record.keys():
            return record
    return None  # a file of the user
