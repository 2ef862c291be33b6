"""Sources of sentence pairs: the table of their kinds, and the functions that open and read them.

A new kind of source is a file with its class, and an entry in `SOURCES`.
"""

import bisect
import functools
import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from transformer import files
from transformer.config_types import Config
from transformer.data.sources.lines import decode, is_natural_number, read_text_file
from transformer.data.sources.synthetic import SyntheticSource
from transformer.data.sources.text import IdsSource, TextSource
from transformer.data.sources.tfds import TfdsSource
from transformer.errors import UNREADABLE, UserError

SPLITS = ("train", "valid", "test")
ORIGIN = "data.json"  # the record of how a folder of data was made, which `scripts.get_data` writes

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
    if split != "train" or not (data.exclude or data.train_pairs):
        return source
    excluded = _read_excluded(data.exclude, len(source)) if data.exclude else None
    return SelectedPairs(source, excluded, data.train_pairs)


def read_pairs(data: Config, split: str) -> tuple[list[str], list[str]]:
    """Reads all source sentences and references of a held-out split, in order.

    Nothing is repaired, since scores against repaired references would not be comparable. Raises UserError if the split
    is empty or a sentence is not UTF-8.
    """
    source = open_source(data, split)
    if not len(source):
        raise UserError(f"{source.name}: no sentences; name a split with at least one")
    texts = list(decoded(source))
    return [text for text, _ in texts], [text for _, text in texts]


def decoded(source: Source) -> Iterator[tuple[str, str]]:
    """Yields the pairs as text. Raises UserError, with file and line, at the first side that is not UTF-8."""
    for index, pair in enumerate(source):
        yield tuple(decode(line, source.where(index, side)) for side, line in enumerate(pair))


@dataclass(frozen=True)
class SelectedPairs:
    """The first `limit` pairs of a source, 0 for all, after those with the numbers `excluded` have been left out.

    The numbers are from 0 and ascend; None if `data.exclude` is empty.
    """

    source: Source
    excluded: tuple[int, ...] | None
    limit: int

    @property
    def name(self) -> str:
        remaining = "" if self.excluded is None else f", without {len(self.excluded):,} pairs"
        first = f", first {self.limit:,} pairs" if self.limit else ""
        return f"{self.source.name}{remaining}{first}"

    @property
    def identity(self) -> dict:
        identity = self.source.identity
        if self.excluded is not None:
            identity |= {"excluded": hashlib.sha256(str(self.excluded).encode()).hexdigest()}
        return identity | ({"first": self.limit} if self.limit else {})

    def __len__(self) -> int:
        remaining = len(self.source) - len(self.excluded or ())
        return min(remaining, self.limit) if self.limit else remaining

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        excluded = set(self.excluded or ())
        pairs = (pair for number, pair in enumerate(self.source) if number not in excluded)
        return itertools.islice(pairs, self.limit or None)

    def where(self, index: int, side: int) -> str:
        return self.source.where(index + bisect.bisect_right(self._pairs_before, index), side)

    @functools.cached_property
    def _pairs_before(self) -> list[int]:
        """The number of remaining pairs before each excluded one."""
        return [number - i for i, number in enumerate(self.excluded or ())]


def _read_excluded(path: str, count: int) -> tuple[int, ...]:
    """Reads the list of `data.exclude`: a pair's number from 1 at the beginning of each line, up to a tab.

    Raises UserError if a line has none, or it is larger than `count`.
    """
    numbers = set()
    for line, text in enumerate(read_text_file(files.expanded(path)), start=1):
        number = text.partition("\t")[0]
        if not (is_natural_number(number) and 1 <= int(number) <= count):
            raise UserError(
                f"config.data.exclude={path}: line {line}: {number!r:.60} must be the number of a pair, 1 to {count:,}"
            )
        numbers.add(int(number) - 1)
    return tuple(sorted(numbers))


def read_origin(data: Config) -> dict[str, Any] | None:
    """Returns the record in the folder `data.path`; None if there is none. Raises UserError if it is damaged."""
    path = files.expanded(data.path) / ORIGIN
    if not data.path or not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict):
            raise TypeError("not an object")
    except UNREADABLE as error:
        raise UserError(
            f"{path}: damaged ({type(error).__name__}); restore it, or delete it to train without"
        ) from error
    return record
