"""Documents: each sentence after those before it (Tiedemann and Scherrer 2017). Blank lines stand between documents."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

from transformer.data.sources.lines import is_blank

if TYPE_CHECKING:
    from transformer.data.sources.source import Source

SEPARATOR = "<sep>"  # the word between two sentences, of which the vocabulary makes a token


@dataclass(frozen=True)
class DocumentSource:
    """The pairs of a source, each after at most `context` pairs before it in its document, on both sides."""

    source: "Source"
    context: int

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def identity(self) -> dict:
        return self.source.identity | {"context": self.context}

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        before, separator = deque(maxlen=self.context + 1), f" {SEPARATOR} ".encode()
        for pair in self.source:
            if all(map(is_blank, pair)):
                before.clear()
                continue
            before.append(pair)
            sides = zip(*before, strict=True)  # one that monolingual pairs do not have stays empty
            yield tuple(separator.join(side) if any(side) else b"" for side in sides)

    def where(self, index: int, side: int) -> str:
        return self.source.where(int(self._numbers[index]), side)

    @cached_property
    def _numbers(self) -> Int[np.ndarray, " N"]:
        """The numbers of the pairs that are no ends of documents."""
        return np.flatnonzero([not all(map(is_blank, pair)) for pair in self.source])
