"""Corpora that the configuration lists as texts: the training mixture, and validation sets."""

import itertools
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from transformer.config.keys import declared_keys
from transformer.config.types import Config, with_changes
from transformer.data.languages import source_tag
from transformer.data.sources import Source
from transformer.data.sources.lines import parse_number
from transformer.data.sources.text import file_identity
from transformer.support import files
from transformer.support.errors import UserError

# Keys of the group `data` that a corpus of a mixture or a validation set may set for itself.
_SHARED_KEYS = ("source", "name", "path", "source_language", "target_language", "source_tag")
CORPUS_KEYS = (*_SHARED_KEYS, "train_split", "train_pairs", "exclude")
SET_KEYS = (*_SHARED_KEYS, "valid_split")
# The files of a corpus with a line for each pair: its weight in the loss (1 without a file), the
# links of its words, and its reward.
ANNOTATIONS = ("pair_weights", "alignments", "rewards")


class ListedCorpus(NamedTuple):
    """A corpus as `data.mixture` lists it."""

    label: str  # in logs and metrics
    data: Config  # its group `data`
    weight: float  # how many times an epoch reads each pair
    annotations: dict[str, Path]  # its files, by the keys in `ANNOTATIONS`

    @property
    def tag(self) -> str:
        """The word that begins each source; "" if there is none."""
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
        identity: dict[str, Any] = {"source": "mixture"}
        identity["parts"] = [source.identity for source in self.sources]
        for key in ANNOTATIONS:
            identity[key] = [path and file_identity(path) for path in self.paths(key)]
        return identity

    def weigh(self, counts: Sequence[int]) -> list[float]:
        """Returns how many times an epoch reads each pair of each part.

        `counts` gives the number of pairs of each part. With a temperature T, an epoch reads pairs
        of the parts in proportion to the T-th root of their sizes, and the largest part keeps its
        weight. Raises UserError if an epoch reads no pair of a part.
        """
        largest = max(counts)
        root = 1 - 1 / self.temperature
        weights = []
        for part, count in zip(self.corpora, counts, strict=True):
            if not count:
                raise UserError(
                    f"config.data.mixture: no pair of {part.label} is left, as earlier corpora "
                    "have them or they are too long; remove it, raise config.data.max_length or "
                    "set config.data.deduplicate=False"
                )
            # In all, an epoch reads weight * count^(1/T) * largest^(1 - 1/T) pairs of the part.
            weight = part.weight * (largest / count) ** root
            if weight * count < 1:
                raise UserError(
                    f"config.data.mixture: an epoch reads less than one pair of {part.label}; "
                    "raise its weight"
                )
            weights.append(weight)
        return weights

    def paths(self, key: str) -> list[Path | None]:
        """Returns the file of each part for a key in `ANNOTATIONS`, or None."""
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
        for source in self.sources:
            if index < len(source):
                return source.where(index, side)
            index -= len(source)
        raise IndexError(index)


def listed_corpora(data: Config) -> list[ListedCorpus]:
    """Returns the corpora of `data.mixture`, or the only corpus.

    Raises UserError if a text does not describe a corpus, or if two corpora have the same label.
    """
    if not data.mixture:
        return [ListedCorpus(data.train_split, data, 1.0, {})]
    corpora = [
        _read_corpus(data, number, text) for number, text in enumerate(data.mixture, start=1)
    ]

    # Logs and metrics name a corpus by its label.
    labels = [corpus.label for corpus in corpora]
    for label in labels:
        if labels.count(label) > 1:
            raise UserError(
                f"config.data.mixture: two corpora are called {label}; give each a label=WORD of "
                "its own"
            )
    return corpora


def held_out_sets(config: Config) -> dict[str, Config]:
    """Returns the configuration of each validation set by label.

    The label "" is for `data.valid_split`. Raises UserError if a set in `data.valid_sets` has no
    label, or the label of another set.
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


def source_tags(data: Config) -> list[str]:
    """Returns the words that begin the sources of the training corpora, each once."""
    return list(dict.fromkeys(corpus.tag for corpus in listed_corpora(data) if corpus.tag))


def annotation_keys(data: Config) -> set[str]:
    """Returns the keys in `ANNOTATIONS` for which a corpus of the mixture has a file."""
    return {key for corpus in listed_corpora(data) for key in corpus.annotations}


def check_direction(train_data: Config, data: Config) -> None:
    """Raises UserError if a model trained with the group `train_data` cannot translate `data`.

    Only the languages are checked. A tag that names the target language may allow languages that
    were not trained; the vocabulary then tells whether it has that tag.
    """
    corpora = listed_corpora(train_data)
    directions = [(corpus.data.source_language, corpus.data.target_language) for corpus in corpora]
    direction = data.source_language, data.target_language
    label = "-".join(direction)
    if direction not in directions and "{target_language}" not in train_data.source_tag:
        labels = ", ".join("-".join(pair) for pair in directions)
        raise UserError(
            f"{label}: the model translates {labels}, and no tag tells it another language"
        )
    tags = [
        corpus.tag for corpus, pair in zip(corpora, directions, strict=True) if pair == direction
    ]

    # The corpora of this direction may have had another tag than `data` gives.
    is_other_target = data.target_language != train_data.target_language
    if is_other_target and tags and source_tag(data) not in tags:
        raise UserError(f"{label}: leave the languages out, and write {tags[0]} before each source")


def _read_corpus(data: Config, number: int, text: str) -> ListedCorpus:
    where = f"config.data.mixture, corpus {number}"
    values = _settings(where, text, ("label", "weight", *ANNOTATIONS), CORPUS_KEYS)
    label = values.pop("label", values.get("name", values.get("train_split", data.train_split)))
    weight = parse_number(values.pop("weight", "1"))
    if not 0 < weight < math.inf:
        raise UserError(f"{where}: weight must be a number above 0")
    files_of = {key: values.pop(key) for key in ANNOTATIONS if key in values}

    # The other values are keys of the group `data`.
    corpus_data = with_changes(data, **values, mixture=())
    paths = {key: _find_file(name, corpus_data) for key, name in files_of.items()}
    if "alignments" in paths and source_tag(corpus_data):
        raise UserError(f"{where}: the words of alignments have no tag; leave source_tag empty")
    return ListedCorpus(label, corpus_data, weight, paths)


def _find_file(name: str, corpus_data: Config) -> Path:
    """Returns the path of an annotation file, which may be in the folder of its corpus."""
    path = files.expand_user(name)
    beside = files.expand_user(corpus_data.path) / name
    return beside if beside.exists() and not path.exists() else path


def _settings(
    where: str, text: str, other_keys: Sequence[str], data_keys: Sequence[str]
) -> dict[str, Any]:
    """Returns the values of a text of KEY=VALUE words.

    `data_keys` are keys of the group `data`, with the types and rules of this group. Raises
    UserError, which begins with `where`, for another form, key or value.
    """
    try:
        words = [word.partition("=") for word in shlex.split(text)]
    except ValueError as error:
        raise UserError(f"{where}: {text!r:.80} has an open quotation mark") from error
    declared = declared_keys()
    keys = (*other_keys, *data_keys)
    values: dict[str, Any] = {}
    for key, equals, value in words:
        if not equals or key not in keys:
            raise UserError(
                f"{where}: '{key:.40}' must be KEY=VALUE, with a key among {', '.join(keys)}"
            )
        if key in values:
            raise UserError(f"{where}: {key} is given twice")

        # `shlex` gives strings: convert integers, and check all values as those of other configs.
        values[key] = value
        if key in data_keys:
            key_type = declared[f"data.{key}"].type
            rule = declared[f"data.{key}"].rule
            if key_type is int and value.isdecimal():
                values[key] = int(value)
            if type(values[key]) is not key_type or not rule.accepts(values[key]):
                raise UserError(f"{where}: {key}={value:.40} must be {rule.description}")
    return values
