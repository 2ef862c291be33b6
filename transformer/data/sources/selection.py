"""Parts of a data source: its first pairs, and all pairs but those in a list."""

import bisect
import functools
import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from transformer import files
from transformer.data.sources.interface import Source
from transformer.data.sources.lines import is_natural_number, read_text_file
from transformer.errors import UserError


@dataclass(frozen=True)
class FirstPairs:
    """The first `limit` pairs of a source."""

    source: Source
    limit: int

    @property
    def name(self) -> str:
        return f"{self.source.name}, first {self.limit:,} pairs"

    @property
    def identity(self) -> dict:
        return self.source.identity | {"first": self.limit}

    def __len__(self) -> int:
        return min(len(self.source), self.limit)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return itertools.islice(self.source, self.limit)

    def where(self, index: int, side: int) -> str:
        return self.source.where(index, side)


@dataclass(frozen=True)
class RemainingPairs:
    """The pairs of a source that are not excluded.

    path: the file with the list, for messages. excluded: the pairs' numbers from 0, ascending.
    """

    source: Source
    path: str
    excluded: tuple[int, ...]

    @classmethod
    def read(cls, source: Source, path: str) -> "RemainingPairs":
        """Reads the list of `data.exclude`: a pair's number from 1 at the beginning of each line, up to a tab.

        Raises UserError if a line has none, or there is no such pair.
        """
        numbers, count = set(), len(source)
        for line, text in enumerate(read_text_file(files.expanded(path)), start=1):
            number = text.partition("\t")[0]
            if not (is_natural_number(number) and 1 <= int(number) <= count):
                raise UserError(
                    f"config.data.exclude={path}: line {line}: {number!r:.60} must be the number of a pair, "
                    f"1 to {count:,}"
                )
            numbers.add(int(number) - 1)
        return cls(source, path, tuple(sorted(numbers)))

    @property
    def name(self) -> str:
        return f"{self.source.name}, without {len(self.excluded):,} pairs"

    @property
    def identity(self) -> dict:
        return self.source.identity | {"excluded": hashlib.sha256(str(self.excluded).encode()).hexdigest()}

    def __len__(self) -> int:
        return len(self.source) - len(self.excluded)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        excluded = set(self.excluded)
        return (pair for number, pair in enumerate(self.source) if number not in excluded)

    def where(self, index: int, side: int) -> str:
        return self.source.where(index + bisect.bisect_right(self._pairs_before, index), side)

    @functools.cached_property
    def _pairs_before(self) -> list[int]:
        """The number of pairs that are kept before each excluded one."""
        return [number - i for i, number in enumerate(self.excluded)]
