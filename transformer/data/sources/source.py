"""Where sentence pairs come from: `data.source` names one of four kinds, all with the same few methods."""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from transformer.data.sources.lines import decode
from transformer.data.sources.synthetic import SyntheticSource
from transformer.data.sources.text import IdsSource, TextSource
from transformer.data.sources.tfds import TfdsSource
from transformer.errors import UserError

SPLITS = ("train", "valid", "test")
_KINDS = {"tfds": TfdsSource, "text": TextSource, "ids": IdsSource, "synthetic": SyntheticSource}


@runtime_checkable
class Source(Protocol):
    """The pairs of one split, in a fixed order. It can be pickled, so that several processes can read parts of it."""

    @property
    def name(self) -> str:
        """What to call it in messages."""

    @property
    def identity(self) -> dict:
        """What the content depends on, in JSON's types: prepared corpora are cached by it."""

    @property
    def seekable(self) -> bool:
        """Whether `pairs` can start anywhere; otherwise it has to read all that comes before."""

    def __len__(self) -> int:
        """How many pairs there are. May take one pass over the files. UserError if the sides differ in number."""

    def pairs(self, start: int, stop: int) -> Iterator[tuple[bytes, bytes]]:
        """Pairs start to stop: source and target, meant to be UTF-8."""

    def where(self, index: int, side: int) -> str:
        """Where the source (side 0) or target (side 1) of a pair stands, for messages."""


def open_source(data, split: str) -> Source:
    """The source that `data` describes, for split "train", "valid" or "test".

    Raises:
      UserError: the split is not one of these, or its data is not there.
    """
    if split not in SPLITS:
        raise UserError(f"split {split}: must be one of {', '.join(SPLITS)}")
    return _KINDS[data.source].open(data, split)


def read_pairs(data, split: str) -> tuple[list[str], list[str]]:
    """The raw source sentences and references of a held-out split, in order, none left out.

    Raises:
      UserError: it has no pairs, or one that is not UTF-8: a score over mended references would not be comparable.
    """
    source = open_source(data, split)
    if not len(source):
        raise UserError(f"{source.name}: no sentences; give a split with at least one")
    pairs = enumerate(source.pairs(0, len(source)))
    texts = [[decode(line, source.where(index, side)) for side, line in enumerate(pair)] for index, pair in pairs]
    return [text for text, _ in texts], [text for _, text in texts]
