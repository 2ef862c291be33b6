"""The interface of data sources, and the table of their kinds."""

from collections.abc import Iterator
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
    """The sentence pairs of one split, in a fixed order. Worker processes receive it pickled and read parts of it."""

    @property
    def name(self) -> str:
        """The name used in messages."""

    @property
    def identity(self) -> dict:
        """Everything that the pairs depend on, as JSON types. It is part of the key of a cached corpus."""

    @property
    def seekable(self) -> bool:
        """True if `pairs` can start anywhere without reading the pairs before."""

    def __len__(self) -> int:
        """Counts the pairs, which may take one pass over the files. Raises UserError if the sides differ in number."""

    def pairs(self, start: int, stop: int) -> Iterator[tuple[bytes, bytes]]:
        """Yields the source and target of pairs start to stop. The bytes may not be valid UTF-8."""

    def where(self, index: int, side: int) -> str:
        """Returns the position of a pair's source (side 0) or target (side 1), for messages."""


def open_source(data: Config, split: str) -> Source:
    """Opens the source that `data` describes, for split "train", "valid" or "test".

    Raises:
      UserError: the split is none of these, or its data is missing.
    """
    if split not in SPLITS:
        raise UserError(f"split {split}: must be one of {', '.join(SPLITS)}")
    return SOURCES[data.source].open(data, split)


def read_pairs(data: Config, split: str) -> tuple[list[str], list[str]]:
    """Reads all source sentences and references of a held-out split, in order and unchanged.

    Raises:
      UserError: the split is empty or a sentence is not UTF-8. Repaired references would give incomparable scores.
    """
    source = open_source(data, split)
    if not len(source):
        raise UserError(f"{source.name}: no sentences; name a split with at least one")
    pairs = enumerate(source.pairs(0, len(source)))
    texts = [[decode(line, source.where(index, side)) for side, line in enumerate(pair)] for index, pair in pairs]
    return [text for text, _ in texts], [text for _, text in texts]
