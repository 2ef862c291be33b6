"""A mixture of corpora, as `data.mixture` lists them: one source, of whose parts an epoch reads more or less."""

import bisect
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import ml_collections

from transformer.config_types import Config
from transformer.errors import UserError

if TYPE_CHECKING:
    from transformer.data.sources.source import Source

# Keys of the group `data` that a part may have for itself, and those that only parts have.
SHARED_KEYS = ("source", "name", "path", "train_split", "train_pairs", "exclude", "source_language", "target_language")
OWN_KEYS = ("weight", "tag")


@dataclass(frozen=True)
class Part:
    """A corpus of a mixture. Each of its sources begins with `tag` and a space, unless the tag is empty."""

    name: str
    source: "Source"
    weight: float  # how many times an epoch reads each pair
    tag: str

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        prefix = f"{self.tag} ".encode() if self.tag else b""
        return ((prefix + source, target) for source, target in self.source)


@dataclass(frozen=True)
class MixedSource:
    """The pairs of all parts, one part after another."""

    corpora: tuple[Part, ...]

    @property
    def name(self) -> str:
        return f"the mixture of {', '.join(part.name for part in self.corpora)}"

    @property
    def identity(self) -> dict:
        return {"source": "mixture", "parts": [[part.source.identity, part.tag] for part in self.corpora]}

    @cached_property
    def ends(self) -> list[int]:
        """The number of pairs up to the end of each part."""
        return [sum(map(len, self.corpora[: number + 1])) for number in range(len(self.corpora))]

    def __len__(self) -> int:
        return self.ends[-1]

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        for part in self.corpora:
            yield from part

    def where(self, index: int, side: int) -> str:
        number = bisect.bisect_right(self.ends, index)
        return self.corpora[number].source.where(index - (self.ends[number] - len(self.corpora[number])), side)


def open_mixture(data: Config, open_part: Callable[[Config], "Source"]) -> MixedSource:
    """Opens the training corpora of `data.mixture`, where `open_part` opens one. Raises UserError for unusable ones."""
    parts = [_open(data, number, text, open_part) for number, text in enumerate(data.mixture, start=1)]
    names = [part.name for part in parts]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"config.data.mixture: two corpora are called {repeated}; give each a name=NAME of its own")
    return MixedSource(tuple(parts))


def _open(data: Config, number: int, text: str, open_part: Callable[[Config], "Source"]) -> Part:
    values = parse(number, text)
    own = {key: values.pop(key) for key in OWN_KEYS if key in values}
    part_data = ml_collections.ConfigDict(data)
    part_data.mixture = ()
    part_data.update({key: int(value) if key == "train_pairs" else value for key, value in values.items()})
    source = open_part(part_data)
    if not len(source):
        raise UserError(f"config.data.mixture, corpus {number}: {source.name} has no pairs")
    return Part(values.get("name", part_data.train_split), source, float(own.get("weight", 1.0)), own.get("tag", ""))


def parse(number: int, text: str) -> dict[str, str]:
    """Returns the settings of a corpus, written as KEY=VALUE separated by spaces. Raises UserError for wrong ones."""
    where = f"config.data.mixture, corpus {number}"
    try:
        settings = [word.partition("=") for word in shlex.split(text)]
    except ValueError as error:
        raise UserError(f"{where}: {text!r:.80} has an open quotation mark") from error
    for key, equals, _ in settings:
        if not equals or key not in SHARED_KEYS + OWN_KEYS:
            listed = ", ".join((*OWN_KEYS, *SHARED_KEYS))
            raise UserError(f"{where}: '{key:.40}' must be KEY=VALUE, with a key among {listed}")
    values = {key: value for key, _, value in settings}
    for key, kind, least in (("weight", float, "above 0"), ("train_pairs", int, "at least 0")):
        try:
            allowed = key not in values or 0 <= kind(values[key]) < 2**31
        except ValueError:
            allowed = False
        if not allowed or (key == "weight" and float(values.get(key, 1)) == 0):
            raise UserError(f"{where}: {key}={values[key]:.40} must be {least}")
    if len(values.get("tag", "").split()) > 1:
        raise UserError(f"{where}: tag={values['tag']:.40} must be one word, such as <news>")
    return values
