"""The tokenizer of a run: a vocabulary for each side, or one that both share (section 5.1)."""

import hashlib
import importlib.metadata
import time
from dataclasses import dataclass
from pathlib import Path

from absl import logging

from transformer import cache, files, locks
from transformer.config_types import Config
from transformer.data.sources.source import open_source
from transformer.data.tokenizers import training, vocabulary
from transformer.data.tokenizers.vocabulary import Vocabulary
from transformer.errors import UserError

MODEL = "tokenizer.model"
_FORMAT = 1  # part of every key in the cache: raise it when the same inputs would give other vocabularies
TARGET_MODEL = "tokenizer.target.model"  # only if the vocabulary is not shared; MODEL is then the source's


@dataclass(frozen=True)
class Tokenizer:
    """The vocabularies of both sides; a shared one is the same object."""

    source: Vocabulary
    target: Vocabulary

    @classmethod
    def load(cls, workdir: Path, config: Config) -> "Tokenizer":
        """Reads the tokenizer saved in `workdir`. Raises UserError if it is missing or damaged."""
        loaded = [_load(workdir / name) for name in model_names(config)]
        return cls(loaded[0], loaded[-1])

    def save(self, workdir: Path) -> None:
        """Writes each file atomically, except those that exist."""
        sides = {MODEL: self.source} if self.target is self.source else {MODEL: self.source, TARGET_MODEL: self.target}
        for name, side in sides.items():
            if not (workdir / name).exists():
                files.write_bytes(workdir / name, side.serialized)

    @property
    def sides(self) -> tuple[Vocabulary, Vocabulary]:
        return self.source, self.target

    @property
    def vocab_sizes(self) -> tuple[int, int]:
        """The vocabulary sizes of source and target."""
        return self.source.size, self.target.size

    @property
    def fingerprint(self) -> str:
        """A digest that is equal for tokenizers with the same vocabularies."""
        digests = [hashlib.sha256(side.serialized).hexdigest() for side in self.sides]
        return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def model_names(config: Config) -> tuple[str, ...]:
    """Returns the names of the tokenizer's files in a workdir: only one if the vocabulary is shared."""
    return (MODEL,) if config.tokenizer.shared else (MODEL, TARGET_MODEL)


def prepare(config: Config, workdir: Path) -> Tokenizer:
    """Returns the tokenizer saved in `workdir`, after making it as `config.tokenizer` says if it is missing.

    Raises UserError if the model file or the training text is missing or unusable.
    """
    if not all((workdir / name).exists() for name in model_names(config)):
        make = read_model_files if config.tokenizer.model_file else _load_or_train
        make(config).save(workdir)
    return Tokenizer.load(workdir, config)


def read_model_files(config: Config) -> Tokenizer:
    """Reads `config.tokenizer.model_file`. Raises UserError if a file is missing or damaged."""
    loaded = [_load(files.expanded(name.strip())) for name in config.tokenizer.model_file.split(",")]
    return Tokenizer(loaded[0], loaded[-1])


def _load_or_train(config: Config) -> Tokenizer:
    """Trains a tokenizer, unless the cache has one with the same training text and settings."""
    source = open_source(config.data, "train")
    ignored = ("model_file", "subword_sampling")
    settings = {key: value for key, value in config.tokenizer.items() if key not in ignored}
    key = cache.key([_FORMAT, settings, source.identity, importlib.metadata.version("sentencepiece")])
    folder = cache.folder(config.data.cache_dir) / "tokenizers" / f"{config.data.name.replace('/', '-')}-{key}"

    def train(unfinished: Path) -> None:
        began = time.perf_counter()
        with locks.computing():
            tokenizer = Tokenizer(*training.train(config.tokenizer, source))
        sizes = " and ".join(f"{size:,}" for size in sorted(set(tokenizer.vocab_sizes)))
        seconds = time.perf_counter() - began
        logging.info("Tokenizer: %s %s tokens, made in %.1f s.", sizes, config.tokenizer.kind, seconds)
        tokenizer.save(unfinished)

    cache.make_once(folder, train, config.data.wait_seconds)
    return Tokenizer.load(folder, config)


def _load(path: Path) -> Vocabulary:
    try:
        serialized = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; name or restore the tokenizer's model") from error
    return vocabulary.load(serialized, str(path))
