"""Sources of sentence pairs. A module has one kind, and `source.py` the table of all."""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable


@runtime_checkable
class Source(Protocol):
    """The sentence pairs of one split, in a fixed order."""

    @property
    def name(self) -> str:
        """The name in messages."""

    @property
    def identity(self) -> dict:
        """Everything that the pairs depend on, as JSON types.

        It is part of the key of a cached corpus.
        """

    def __len__(self) -> int:
        """Counts the pairs, which may take one pass over the files.

        Raises UserError if the sides differ in number.
        """

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields the source and target of each pair. The bytes may not be valid UTF-8."""

    def where(self, index: int, side: int) -> str:
        """Returns the position of a pair's source (side 0) or target (side 1), for messages."""
