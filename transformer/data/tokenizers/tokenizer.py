"""Text to ids and back for both languages (section 5.1: byte-pair encoding or word pieces, a shared vocabulary)."""

import hashlib
import importlib.metadata
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from absl import logging

from transformer import cache, files
from transformer.data.sources import source as sources
from transformer.data.tokenizers import training as tokenizer_training
from transformer.data.tokenizers import vocabulary
from transformer.data.tokenizers.vocabulary import Vocabulary
from transformer.errors import UserError

MODEL = "tokenizer.model"
TARGET_MODEL = "tokenizer.target.model"  # there if the vocabulary is not shared; MODEL is then the source's


@dataclass(frozen=True)
class Tokenizer:
    """The vocabularies of both sides: one and the same object if they share one. No method adds BOS or EOS."""

    source: Vocabulary
    target: Vocabulary
    sampling: float  # config.tokenizer.subword_sampling

    @classmethod
    def load(cls, workdir: Path, config) -> "Tokenizer":
        """The tokenizer saved in `workdir`. Raises UserError if it is not there or damaged."""
        source = _load(workdir / MODEL)
        target = source if config.tokenizer.shared else _load(workdir / TARGET_MODEL)
        return cls(source, target, config.tokenizer.subword_sampling)

    def save(self, workdir: Path) -> None:
        """Writes each file in one step."""
        if self.target is not self.source:
            files.write_bytes(workdir / TARGET_MODEL, self.target.serialized)
        files.write_bytes(workdir / MODEL, self.source.serialized)

    @property
    def source_vocab_size(self) -> int:
        return self.source.size

    @property
    def target_vocab_size(self) -> int:
        return self.target.size

    @property
    def source_pieces(self) -> list[str]:
        """What each source id stands for."""
        return self.source.pieces

    @property
    def target_pieces(self) -> list[str]:
        """What each target id stands for."""
        return self.target.pieces

    @property
    def fingerprint(self) -> str:
        """Equal for tokenizers that give the same ids."""
        digests = [hashlib.sha256(side.serialized).hexdigest() for side in (self.source, self.target)]
        return hashlib.sha256(" ".join(digests).encode()).hexdigest()

    def encode_source(self, texts: Sequence[str]) -> list[list[int]]:
        return self.source.encode(texts)

    def encode_target(self, texts: Sequence[str]) -> list[list[int]]:
        return self.target.encode(texts)

    def encode_source_sampled(self, texts: Sequence[str], seeds: Iterable[int]) -> list[list[int]]:
        """With subword regularisation; a text's ids are a pure function of it and of its seed, from 0 to 2^32 - 1."""
        return self.source.sample(texts, seeds, self.sampling)

    def encode_target_sampled(self, texts: Sequence[str], seeds: Iterable[int]) -> list[list[int]]:
        """As `encode_source_sampled`."""
        return self.target.sample(texts, seeds, self.sampling)

    def decode_target(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """The text of each sequence, without PAD, BOS and EOS."""
        return self.target.decode(sequences)


def prepare(config, workdir: Path) -> Tokenizer:
    """The tokenizer of a run: the one in `workdir`, else made as config.tokenizer asks and saved there.

    Raises:
      UserError: the model file, or the training text, cannot give it.
    """
    names = (MODEL,) if config.tokenizer.shared else (MODEL, TARGET_MODEL)
    if not all((workdir / name).exists() for name in names):
        make_from = _copy if config.tokenizer.model_file else _trained
        make_from(config).save(workdir)
    return Tokenizer.load(workdir, config)


def _copy(config) -> Tokenizer:
    options = config.tokenizer
    paths = [files.expanded(name.strip()) for name in options.model_file.split(",")]
    if len(paths) != (1 if options.shared else 2):
        raise UserError(
            f"tokenizer.model_file={options.model_file}: tokenizer.shared={options.shared} needs "
            f"{'one file' if options.shared else 'two, SOURCE,TARGET'}"
        )
    loaded = [_load(path) for path in paths]
    return Tokenizer(loaded[0], loaded[-1], options.subword_sampling)


def _trained(config) -> Tokenizer:
    """Made once for all runs with the same training text and settings."""
    source = sources.open_source(config.data, "train")
    home = cache.folder(config.data) / "tokenizers"
    home.mkdir(exist_ok=True)
    folder = home / f"{config.data.name.replace('/', '-')}-{cache.key(_content(config.tokenizer, source))}"
    cache.make_once(folder, lambda unfinished: _train(config, source).save(unfinished), config.data.wait_seconds)
    return Tokenizer.load(folder, config)


def _content(options, source: sources.Source) -> list:
    """All that the pieces depend on."""
    settings = {key: value for key, value in options.items() if key not in ("model_file", "sampling")}
    return [settings, source.identity, importlib.metadata.version("sentencepiece")]


def _train(config, source: sources.Source) -> Tokenizer:
    if not len(source):
        raise UserError(f"{source.name}: no training pairs; give a split with at least one")
    began = time.perf_counter()
    tokenizer = Tokenizer(*tokenizer_training.train(config.tokenizer, source), config.tokenizer.subword_sampling)
    sizes = sorted({tokenizer.source_vocab_size, tokenizer.target_vocab_size})
    logging.info(
        "Tokenizer: %s pieces (%s), made in %.1f s.",
        " and ".join(f"{size:,}" for size in sizes),
        config.tokenizer.kind,
        time.perf_counter() - began,
    )
    return tokenizer


def _load(path: Path) -> Vocabulary:
    try:
        serialized = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; a tokenizer's model is needed there") from error
    return vocabulary.load(serialized, str(path))
