"""Corpora that the configuration lists as texts: those of a mixture, as one source, and more validation sets."""

import bisect
import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import ml_collections
import numpy as np
from jaxtyping import Float32

from transformer import files
from transformer.config_types import Config
from transformer.data.languages import source_tag
from transformer.data.sources.lines import counted, read_text_file
from transformer.data.sources.text import file_identity
from transformer.errors import UserError

if TYPE_CHECKING:
    from transformer.data.sources.source import Source

# Keys of the group `data` that a part may have for itself, and those that only parts have.
SHARED_KEYS = ("source", "name", "path", "train_split", "train_pairs", "exclude")
SHARED_KEYS += ("source_language", "target_language", "source_tag")
HELD_OUT_KEYS = ("name", "source", "path", "valid_split", "source_language", "target_language", "source_tag")
OWN_KEYS = ("weight", "pair_weights")


@dataclass(frozen=True)
class Part:
    """A corpus of a mixture."""

    name: str
    source: "Source"
    weight: float  # how many times an epoch reads each pair
    tag: str  # the word that begins each source, or ""
    pair_weights: Path | None  # file with a line for each pair: its weight in the loss; None: 1

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(self.source)


@dataclass(frozen=True)
class MixedSource:
    """The pairs of all parts, one part after another."""

    corpora: tuple[Part, ...]

    @property
    def name(self) -> str:
        return f"the mixture of {', '.join(part.name for part in self.corpora)}"

    @property
    def identity(self) -> dict:
        weights = [part.pair_weights and file_identity(part.pair_weights) for part in self.corpora]
        parts = [[part.source.identity, part.tag] for part in self.corpora]
        return {"source": "mixture", "parts": parts, "pair_weights": weights}

    @cached_property
    def ends(self) -> list[int]:
        """The number of pairs up to the end of each part."""
        return [sum(map(len, self.corpora[: number + 1])) for number in range(len(self.corpora))]

    def __len__(self) -> int:
        return self.ends[-1]

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        for part in self.corpora:
            yield from part

    @cached_property
    def pair_weights(self) -> Float32[np.ndarray, " N"] | None:
        """The weight of each pair in the loss; None if no part has any. Raises UserError for an unusable file."""
        if not any(part.pair_weights for part in self.corpora):
            return None
        return np.concatenate([_read_weights(part) for part in self.corpora])

    def where(self, index: int, side: int) -> str:
        number = bisect.bisect_right(self.ends, index)
        return self.corpora[number].source.where(index - (self.ends[number] - len(self.corpora[number])), side)


def has_pair_weights(data: Config) -> bool:
    """Tells whether pairs of the mixture have weights in the loss."""
    return any("pair_weights" in parse(number, text) for number, text in enumerate(data.mixture, start=1))


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
    weights = files.expanded(own["pair_weights"]) if "pair_weights" in own else None
    if weights and not weights.is_file():
        raise UserError(f"config.data.mixture, corpus {number}: there is no file pair_weights={weights}")
    name = values.get("name", part_data.train_split)
    return Part(name, source, float(own.get("weight", 1.0)), source_tag(part_data), weights)


def _read_weights(part: Part) -> Float32[np.ndarray, " N"]:
    if part.pair_weights is None:
        return np.ones(len(part), np.float32)
    lines = read_text_file(part.pair_weights)
    if len(lines) != len(part):
        raise UserError(f"{part.pair_weights}: has {counted(len(lines), 'line')} for {counted(len(part), 'pair')}")
    weights = []
    for number, line in enumerate(lines, start=1):
        try:
            weights.append(float(line))
        except ValueError:
            weights.append(-1.0)
        if not 0 <= weights[-1] < math.inf:
            raise UserError(f"{part.pair_weights}, line {number}: '{line:.40}' must be a number, at least 0")
    return np.array(weights, np.float32)


def held_out_sets(config: Config) -> dict[str, Config]:
    """Returns the configuration of each validation set by name: "" for `data.valid_split`, and `data.valid_sets`.

    Raises UserError if a set has no name, or that of another.
    """
    sets = {"": config}
    for number, text in enumerate(config.data.valid_sets, start=1):
        where = f"config.data.valid_sets, set {number}"
        values = _settings(where, text, HELD_OUT_KEYS)
        name = values.pop("name", "")
        if name in (*sets, "mean") or "/" in name:
            raise UserError(f"{where}: needs a name=NAME of its own, other than mean and without a slash")
        sets[name] = ml_collections.ConfigDict(config)
        sets[name].data = ml_collections.ConfigDict(config.data)  # the copy above shares its groups
        sets[name].data.update(values)
    return sets


def parse(number: int, text: str) -> dict[str, str]:
    """Returns the settings of a corpus, written as KEY=VALUE separated by spaces. Raises UserError for wrong ones."""
    where = f"config.data.mixture, corpus {number}"
    values = _settings(where, text, OWN_KEYS + SHARED_KEYS)
    for key, kind, least in (("weight", float, "above 0"), ("train_pairs", int, "at least 0")):
        try:
            allowed = key not in values or 0 <= kind(values[key]) < 2**31
        except ValueError:
            allowed = False
        if not allowed or (key == "weight" and float(values.get(key, 1)) == 0):
            raise UserError(f"{where}: {key}={values[key]:.40} must be {least}")
    return values


def _settings(where: str, text: str, keys: Sequence[str]) -> dict[str, str]:
    try:
        settings = [word.partition("=") for word in shlex.split(text)]
    except ValueError as error:
        raise UserError(f"{where}: {text!r:.80} has an open quotation mark") from error
    for key, equals, value in settings:
        if not equals or key not in keys:
            raise UserError(f"{where}: '{key:.40}' must be KEY=VALUE, with a key among {', '.join(keys)}")
        if key == "source_tag" and len(value.split()) > 1:
            raise UserError(f"{where}: source_tag={value:.40} must be one word, such as <news>")
    return {key: value for key, _, value in settings}
