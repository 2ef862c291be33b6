"""Sources of sentence pairs: the table of their kinds, and functions that open and read them."""

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
SEPARATOR = "<sep>"  # the word between two sentences of a document, a token of the vocabulary
_BLOCK = 1024  # the most consecutive pairs in a sample of a larger source

# The kinds that `data.source` can name. Each has `open(data, split)`, which returns a Source.
SOURCES: dict[str, Any] = {
    "tfds": TfdsSource,
    "text": TextSource,
    "ids": IdsSource,
    "synthetic": SyntheticSource,
}


def open_source(data: Config, split: str) -> Source:
    """Opens a split with mixture, exclusions and document context applied.

    Raises UserError for unusable data.
    """
    if split == "train" and data.mixture:
        # Name a missing file now, not after the corpora have been encoded.
        corpora = tuple(listed_corpora(data))
        for corpus in corpora:
            for key, path in corpus.annotations.items():
                if not path.is_file():
                    raise UserError(
                        f"config.data.mixture: {corpus.label}: {key}={path}: no such file"
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
    mask = np.ones(len(source), bool)
    if data.exclude:
        # A line begins with the number of a pair. Other text may follow after a tab.
        for line, text in enumerate(read_text_file(files.expand_user(data.exclude)), start=1):
            number = text.partition("\t")[0]
            if not (is_natural_number(number) and 1 <= int(number) <= len(mask)):
                raise UserError(
                    f"config.data.exclude={data.exclude}: line {line}: {number!r:.60} must be the "
                    f"number of a pair, 1 to {len(mask):,}"
                )
            mask[int(number) - 1] = False
    if data.train_pairs:
        # The blank lines between documents are no pairs.
        is_pair = mask & DocumentSource(source, 0).mask if data.context else mask
        # The mask ends with the last pair that it selects.
        mask = mask[: np.searchsorted(np.cumsum(is_pair), data.train_pairs) + 1]
    return SelectedPairs(source, mask)


def read_pairs(data: Config, split: str) -> tuple[list[str], list[str]]:
    """Reads the sources and the targets of a split as text.

    Raises UserError if the split is empty, or if a sentence is not UTF-8.
    """
    if split == "train" and data.mixture:
        raise UserError(
            "split train: is a mixture of corpora here; give the files of one of them instead"
        )
    source = _open_pairs(data, split)
    if not len(source):
        raise UserError(f"{source.name}: no sentences; name a split with at least one")
    texts, translations = zip(*decode_pairs(source), strict=True)
    return list(texts), list(translations)


def decode_pairs(source: Source) -> Iterator[tuple[str, str]]:
    """Yields the pairs as text.

    Raises UserError, with file and line, at the first side that is not UTF-8.
    """
    for index, (text, translation) in enumerate(source):
        yield decode(text, source.where(index, 0)), decode(translation, source.where(index, 1))


def select_pairs(source: Source, limit: int) -> Iterator[tuple[str, str]]:
    """Yields at most `limit` pairs, in blocks spread evenly over the source.

    Skips pairs that are not UTF-8.
    """
    total = len(source)
    num_blocks = math.ceil(limit / _BLOCK)
    for index, pair in enumerate(source):
        # The last block that starts at this index or before, and the place of the pair in it.
        block = ((index + 1) * num_blocks - 1) // total
        offset = index - block * total // num_blocks
        if total <= limit or offset < limit // num_blocks:
            with contextlib.suppress(UnicodeDecodeError):
                yield pair[0].decode(), pair[1].decode()


@dataclass(frozen=True)
class _Selection:
    """Base class of the pairs of a source at which its `mask` is true."""

    source: Source

    def __len__(self) -> int:
        return len(self._numbers)

    def where(self, index: int, side: int) -> str:
        return self.source.where(int(self._numbers[index]), side)

    @functools.cached_property
    def _numbers(self) -> Int[np.ndarray, " M"]:
        # A field of one subclass, and a property of the other.
        return np.flatnonzero(self.mask)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class SelectedPairs(_Selection):
    """A part of the pairs of a source. The mask may end before the source does."""

    mask: Bool[np.ndarray, " N"]

    @property
    def name(self) -> str:
        return f"{self.source.name}, {len(self):,} of {len(self.source):,} pairs"

    @property
    def identity(self) -> dict:
        return self.source.identity | {"kept": hashlib.sha256(self.mask.tobytes()).hexdigest()}

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return itertools.compress(self.source, self.mask)


@dataclass(frozen=True)
class DocumentSource(_Selection):
    """The pairs of a source, each with the preceding pairs of its document on both sides.

    A pair has at most `context` preceding pairs. Blank lines divide documents (Tiedemann and
    Scherrer 2017).
    """

    context: int

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def identity(self) -> dict:
        return self.source.identity | {"context": self.context}

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        pairs = deque(maxlen=self.context + 1)
        separator = f" {SEPARATOR} ".encode()
        for pair in self.source:
            if all(map(is_blank, pair)):
                pairs.clear()
                continue
            pairs.append(pair)
            # A side that lacks a sentence stays empty, as the side that monolingual pairs do not
            # have, so that the pair is dropped.
            sides = zip(*pairs, strict=True)
            text, translation = (
                b"" if any(map(is_blank, side)) else separator.join(side) for side in sides
            )
            yield text, translation

    @functools.cached_property
    def mask(self) -> Bool[np.ndarray, " _"]:
        """False at blank lines."""
        return np.array([not all(map(is_blank, pair)) for pair in self.source], bool)


def read_origin(data: Config) -> dict[str, Any] | None:
    """Returns the record of how the folder `data.path` was made, or None."""
    path = files.expand_user(data.path) / ORIGIN
    if not data.path or not path.is_file():
        return None

    # The user may have a file of this name.
    with contextlib.suppress(ValueError):
        record = json.loads(path.read_bytes())
        if isinstance(record, dict) and {"made", "files"} <= record.keys():
            return record
    return None
