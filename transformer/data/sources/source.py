"""The table of the kinds of data sources, and what opens and reads them."""

from collections.abc import Iterator

from transformer.config_types import Config
from transformer.data.sources.interface import Source
from transformer.data.sources.lines import decode
from transformer.data.sources.selection import FirstPairs, RemainingPairs
from transformer.data.sources.synthetic import SyntheticSource
from transformer.data.sources.text import IdsSource, TextSource
from transformer.data.sources.tfds import TfdsSource
from transformer.errors import UserError

SPLITS = ("train", "valid", "test")

# The kinds that `data.source` can name. Each has `open(data, split)`, which returns a Source.
SOURCES = {"tfds": TfdsSource, "text": TextSource, "ids": IdsSource, "synthetic": SyntheticSource}


def open_source(data: Config, split: str) -> Source:
    """Opens the source that `data` describes, for one of SPLITS. Raises UserError if its data is missing."""
    source = SOURCES[data.source].open(data, split)
    if split == "train" and data.exclude:
        source = RemainingPairs.read(source, data.exclude)
    return FirstPairs(source, data.train_pairs) if split == "train" and data.train_pairs else source


def read_pairs(data: Config, split: str) -> tuple[list[str], list[str]]:
    """Reads all source sentences and references of a held-out split, in order.

    Nothing is repaired, since scores against repaired references would not be comparable.

    Raises:
      UserError: the split is empty or a sentence is not UTF-8.
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
