"""The interface of data sources, and the table of their kinds."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from transformer.config_types import Config
from transformer.data.sources.lines import decode
from transformer.data.sources.synthetic import SyntheticSource
from transformer.data.sources.text import IdsSource, TextSource
from transformer.data.sources.tfds import TfdsSource
from transformer.errors import UserError

SPLITS = ("train", "valid", "test")

# The kinds that `data.source` can name. Each has `open(data, split)`, which returns a Source.
SOURCES = {"tfds": TfdsSource, "text": TextSource, "ids": IdsSource, "synthetic": SyntheticSource}


@runtime_checkable
class Source(Protocol):
    """The sentence pairs of one split, in a fixed order."""

    @property
    def name(self) -> str:
        """The name used in messages."""

    @property
    def identity(self) -> dict:
        """Everything that the pairs depend on, as JSON types. It is part of the key of a cached corpus."""

    def __len__(self) -> int:
        """Counts the pairs, which may take one pass over the files. Raises UserError if the sides differ in number."""

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields the source and target of each pair. The bytes may not be valid UTF-8."""

    def where(self, index: int, side: int) -> str:
        """Returns the position of a pair's source (side 0) or target (side 1), for messages."""


def open_source(data: Config, split: str) -> Source:
    """Opens the source that `data` describes, for one of SPLITS. Raises UserError if its data is missing."""
    source = SOURCES[data.source].open(data, split)
    return FirstPairs(source, data.train_pairs) if split == "train" and data.train_pairs else source


@dataclass(frozen=True)
class FirstPairs:
    """The first `limit` pairs of a source."""

    whole: Source
    limit: int

    @property
    def name(self) -> str:
        return f"{self.whole.name}, first {self.limit:,} pairs"

    @property
    def identity(self) -> dict:
        return self.whole.identity | {"first": self.limit}

    def __len__(self) -> int:
        return min(len(self.whole), self.limit)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return itertools.islice(self.whole, self.limit)

    def where(self, index: int, side: int) -> str:
        return self.whole.where(index, side)


def read_pairs(data: Config, split: str) -> tuple[list[str], list[str]]:
    """Reads all source sentences and references of a held-out split, in order and unchanged.

    Raises:
      UserError: the split is empty or a sentence is not UTF-8. Repaired references would give incomparable scores.
    """
    source = open_source(data, split)
    if not len(source):
        raise UserError(f"{source.name}: no sentences; name a split with at least one")
    texts = [
        [decode(line, source.where(index, side)) for side, line in enumerate(pair)] for index, pair in enumerate(source)
    ]
    return [text for text, _ in texts], [text for _, text in texts]
