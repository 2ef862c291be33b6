"""Corpora that the configuration lists as texts: those of a mixture, which are one source, and more
validation sets.
"""

import bisect
import itertools
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from transformer.config.keys import declared_keys
from transformer.config.types import Config, with_changes
from transformer.data.languages import source_tag
from transformer.data.sources import Source
from transformer.data.sources.lines import parse_number
from transformer.data.sources.text import file_identity
from transformer.support import files
from transformer.support.errors import UserError

# Keys of the group `data` that a corpus of a mixture, or a validation set, may have for itself.
CORPUS_KEYS = (
    "source",
    "name",
    "path",
    "train_split",
    "train_pairs",
    "exclude",
    "source_language",
    "target_language",
    "source_tag",
)
# Files of a corpus with a line for each pair: its weight in the loss (1 without a file), and the
# links of its words.
ANNOTATIONS = ("pair_weights", "alignments")
SET_KEYS = (
    "source",
    "name",
    "path",
    "valid_split",
    "source_language",
    "target_language",
    "source_tag",
)


class ListedCorpus(NamedTuple):
    """A corpus as `data.mixture` lists it."""

    label: str  # in logs and metrics
    data: Config  # its group `data`
    weight: float  # how many times an epoch reads each pair
    annotations: dict[str, Path]  # the files of `ANNOTATIONS` that it has

    @property
    def tag(self) -> str:
        """The word that begins each source; "": none."""
        return source_tag(self.data)


@dataclass(frozen=True)
class MixedSource:
    """The pairs of all corpora, one corpus after another."""

    corpora: tuple[ListedCorpus, ...]
    sources: tuple[Source, ...]
    temperature: float

    @property
    def name(self) -> str:
        return f"the mixture of {', '.join(corpus.label for corpus in self.corpora)}"

    @property
    def identity(self) -> dict:
        identity = {"source": "mixture", "parts": [source.identity for source in self.sources]}
        for key in ANNOTATIONS:
            identity[key] = [path and file_identity(path) for path in self.paths(key)]
        return identity

    def weigh(self, counts: Sequence[int]) -> list[float]:
        """Returns how many times an epoch reads each pair of each part, given the number of pairs
        of each.

        A temperature T draws from parts in proportion to the T-th root of their size, where the
        largest keeps its weight. Raises UserError if an epoch reads no pair of a part.
        """
        largest = max(counts)
        root = 1 - 1 / self.temperature
        weights = []
        for part, count in zip(self.corpora, counts, strict=True):
            if not count:
                raise UserError(
                    f"config.data.mixture: no pair of {part.label} is left, as earlier corpora have them or they are "
                    "too long; remove it, raise config.data.max_length or set config.data.deduplicate=False"
                )
            weights.append(part.weight * (largest / count) ** root)
            if weights[-1] * count < 1:
                raise UserError(
                    f"config.data.mixture: an epoch reads less than one pair of {part.label}; raise its weight"
                )
        return weights

    def paths(self, key: str) -> list[Path | None]:
        """Returns the file that each part has for one of `ANNOTATIONS`, or None."""
        return [corpus.annotations.get(key) for corpus in self.corpora]

    @property
    def sizes(self) -> list[int]:
        """The number of pairs of each part."""
        return [len(source) for source in self.sources]

    def __len__(self) -> int:
        return sum(self.sizes)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return itertools.chain(*self.sources)

    def where(self, index: int, side: int) -> str:
        number = bisect.bisect_right(list(itertools.accumulate(self.sizes)), index)
        return self.sources[number].where(index - sum(self.sizes[:number]), side)


def listed_corpora(data: Config) -> list[ListedCorpus]:
    """Returns the corpora of `data.mixture`, or the only one.

    Raises UserError for a text that is no corpus.
    """
    if not data.mixture:
        return [ListedCorpus(data.train_split, data, 1.0, {})]
    corpora = [
        _read_corpus(data, number, text) for number, text in enumerate(data.mixture, start=1)
    ]
    labels = [corpus.label for corpus in corpora]
    if repeated := next((label for label in labels if labels.count(label) > 1), None):
        raise UserError(
            f"config.data.mixture: two corpora are called {repeated}; give each a label=WORD of its own"
        )
    return corpora


def held_out_sets(config: Config) -> dict[str, Config]:
    """Returns the configuration of each validation set by label: "" for `data.valid_split`, and
    `data.valid_sets`.

    Raises UserError if a set has no label, or that of another.
    """
    sets = {"": config}
    for number, text in enumerate(config.data.valid_sets, start=1):
        where = f"config.data.valid_sets, set {number}"
        values = _settings(where, text, ("label",), SET_KEYS)
        label = values.pop("label", "")
        if label in (*sets, "mean") or "/" in label:
            raise UserError(
                f"{where}: needs a label=WORD of its own, other than mean and without a slash"
            )
        sets[label] = with_changes(config, data=values)
    return sets


def tags(data: Config) -> list[str]:
    """Returns the words that begin the sources of the training corpora."""
    return list(dict.fromkeys(filter(None, (corpus.tag for corpus in listed_corpora(data)))))


def annotations(data: Config) -> set[str]:
    """Returns which of `ANNOTATIONS` pairs of the mixture have."""
    return {key for corpus in listed_corpora(data) for key in corpus.annotations}


def check_direction(trained: Config, wanted: Config) -> None:
    """Raises UserError if a model that was trained with the group `trained` cannot know the
    languages of `wanted`.

    The tag tells the target language, if it names it; the vocabulary then tells whether it has that
    tag.
    """
    corpora = listed_corpora(trained)
    directions = [(corpus.data.source_language, corpus.data.target_language) for corpus in corpora]
    pair = wanted.source_language, wanted.target_language
    if pair not in directions and "{target_language}" not in trained.source_tag:
        known = ", ".join("-".join(direction) for direction in directions)
        raise UserError(
            f"{'-'.join(pair)}: the model translates {known}, and no tag tells it another language"
        )
    tags = [
        corpus.tag
        for corpus, direction in zip(corpora, directions, strict=True)
        if direction == pair
    ]
    if (
        wanted.target_language != trained.target_language
        and tags
        and source_tag(wanted) not in tags
    ):
        raise UserError(
            f"{'-'.join(pair)}: leave the languages out, and write {tags[0]} before each source"
        )


def _read_corpus(data: Config, number: int, text: str) -> ListedCorpus:
    where = f"config.data.mixture, corpus {number}"
    values = _settings(where, text, ("label", "weight", *ANNOTATIONS), CORPUS_KEYS)
    label = values.pop("label", values.get("name", values.get("train_split", data.train_split)))
    weight = parse_number(values.pop("weight", "1"))
    if not 0 < weight < math.inf:
        raise UserError(f"{where}: weight must be a number above 0")
    paths = {key: files.expanded(values.pop(key)) for key in ANNOTATIONS if key in values}
    own = with_changes(data, **values, mixture=())
    if "alignments" in paths and source_tag(own):
        raise UserError(f"{where}: the words of alignments have no tag; leave source_tag empty")
    return ListedCorpus(label, own, weight, paths)


def _settings(
    where: str, text: str, own: Sequence[str], keys: Sequence[str]
) -> dict[str, str | int]:
    """Returns the values of a text of KEY=VALUE words, where `keys` are those of the group `data`.

    Raises UserError, which begins with `where`, for another form, key or value.
    """
    try:
        words = [word.partition("=") for word in shlex.split(text)]
    except ValueError as error:
        raise UserError(f"{where}: {text!r:.80} has an open quotation mark") from error
    declared = declared_keys()
    values = {}
    for key, equals, value in words:
        if not equals or key not in (*own, *keys):
            raise UserError(
                f"{where}: '{key:.40}' must be KEY=VALUE, with a key among {', '.join((*own, *keys))}"
            )
        if key in values:
            raise UserError(f"{where}: {key} is given twice")
        if key in keys:
            key_type = declared[f"data.{key}"].type
            rule = declared[f"data.{key}"].rule
            if key_type is int and value.isdecimal():
                value = int(value)
            if type(value) is not key_type or not rule.accepts(value):
                raise UserError(f"{where}: {key}={value:.40} must be {rule.description}")
        values[key] = value
    return values
