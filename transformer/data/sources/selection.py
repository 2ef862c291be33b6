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


@dataclass(frozen=True)
class OtherPairs:
    """The pairs of a source that are not excluded.

    path: the file with the list, for messages. excluded: the pairs' numbers from 0, ascending.
    """

    whole: Source
    path: str
    excluded: tuple[int, ...]

    @classmethod
    def read(cls, whole: Source, path: str) -> "OtherPairs":
        """Reads the list of `data.exclude`: a pair's number from 1 at the beginning of each line, up to a tab.

        Raises UserError if a line has none, or there is no such pair.
        """
        numbers, count = set(), len(whole)
        for line, text in enumerate(read_text_file(files.expanded(path)), start=1):
            number = text.partition("\t")[0]
            if not (is_natural_number(number) and 1 <= int(number) <= count):
                raise UserError(
                    f"config.data.exclude={path}: line {line}: {number!r:.60} must be the number of a pair, "
                    f"1 to {count:,}"
                )
            numbers.add(int(number) - 1)
        return cls(whole, path, tuple(sorted(numbers)))

    @property
    def name(self) -> str:
        return f"{self.whole.name}, without {len(self.excluded):,} pairs"

    @property
    def identity(self) -> dict:
        return self.whole.identity | {"excluded": hashlib.sha256(str(self.excluded).encode()).hexdigest()}

    def __len__(self) -> int:
        return len(self.whole) - len(self.excluded)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        excluded = set(self.excluded)
        return (pair for number, pair in enumerate(self.whole) if number not in excluded)

    def where(self, index: int, side: int) -> str:
        return self.whole.where(index + bisect.bisect_right(self._pairs_before, index), side)

    @functools.cached_property
    def _pairs_before(self) -> list[int]:
        """The number of pairs that are kept before each excluded one."""
        return [number - i for i, number in enumerate(self.excluded)]
