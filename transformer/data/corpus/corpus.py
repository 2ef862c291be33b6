"""A split as token ids: made once, by several processes, and memory-mapped from the cache ever after."""

import dataclasses
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from jaxtyping import Int, Int32

from transformer import cache, files
from transformer.data.corpus import cleaning, storage
from transformer.data.corpus.encoding import Encoder, RawPairs, Resampler
from transformer.data.corpus.writer import append_all
from transformer.data.sources import source as sources
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.errors import UserError

_FORMAT = 3  # part of every key: raise it when the same inputs would give other files
_STRETCH = 8192  # pairs encoded at once
_REPORT = "corpus.json"


class Corpus:
    """Pairs of sentences as ids, without special ones, in memory-mapped files.

    Attributes:
      lengths: pieces of each source and target, each counted with the end-of-sentence that a batch adds.
      report: `kept`, `dropped` by reason, and the `digest` of all pairs, in order.
    """

    lengths: Int32[np.ndarray, "N 2"]
    report: dict[str, Any]

    def __init__(self, folder: Path, vocab_size: int, resample: Callable[[int, int], "Corpus"] | None) -> None:
        self.report = _read_report(folder)
        self.lengths = storage.open_array(folder, "lengths")
        self._offsets = storage.open_array(folder, "offsets")
        self._ids = storage.open_array(folder, "ids", storage.ids_type(vocab_size))
        self._resample = resample

    def __len__(self) -> int:
        return len(self._offsets)

    def source(self, index: int) -> Int32[np.ndarray, "S"]:
        """The source ids of pair `index`."""
        start = self._offsets[index]
        return self._ids[start : start + self.lengths[index, 0] - 1].astype(np.int32)

    def target(self, index: int) -> Int32[np.ndarray, "T"]:
        """The target ids of pair `index`."""
        start = self._offsets[index] + self.lengths[index, 0] - 1
        return self._ids[start : start + self.lengths[index, 1] - 1].astype(np.int32)

    def pieces(self, side: int, pairs: Int[np.ndarray, "N"]) -> Int32[np.ndarray, "P"]:
        """The ids of many sentences one after the other; side 0 is the source, side 1 the target."""
        lengths = self.lengths[pairs] - 1
        starts = self._offsets[pairs] + (lengths[:, 0] if side == 1 else 0)
        wanted = lengths[:, side].astype(np.int64)
        first = np.cumsum(wanted) - wanted
        return self._ids[np.arange(wanted.sum()) + np.repeat(starts - first, wanted)].astype(np.int32)

    def epoch(self, epoch: int, seed: int) -> "Corpus":
        """The same pairs as epoch number `epoch` sees them: with subword sampling encoded anew, else this very corpus.

        No side becomes longer than data.max_length. Files of earlier epochs of the seed, but the first, are deleted.
        """
        return self if self._resample is None else self._resample(epoch, seed)


def prepare(config, tokenizer: Tokenizer, split: str) -> Corpus:
    """The corpus of a split, from the cache or made now. From a held-out one only pairs with an empty side are dropped.

    Raises:
      UserError: the data is not there or cannot be used, or nothing of it is left.
    """
    source = sources.open_source(config.data, split)
    rules = cleaning.Rules.of(config.data) if split == "train" else None
    encoder = Encoder(source, tokenizer, rules, keep_text=split == "train" and config.tokenizer.subword_sampling > 0)
    home = cache.folder(config.data) / "corpora"
    home.mkdir(exist_ok=True)
    folder = home / f"{config.data.name.replace('/', '-')}-{split}-{cache.key(_content(encoder))}"
    vocab_size = max(tokenizer.source_vocab_size, tokenizer.target_vocab_size)

    def resample(epoch: int, seed: int) -> Corpus:
        resampler = Resampler(folder, tokenizer, config.data.max_length, seed, epoch)
        with cache.turn(cache.lock_of(folder), config.data.wait_seconds):
            return Corpus(_prepare_epoch(resampler, config.data.workers), vocab_size, None)

    def encode(unfinished: Path) -> None:
        _encode(unfinished, encoder, config.data.workers)

    cache.make_once(folder, encode, config.data.wait_seconds)
    corpus = Corpus(folder, vocab_size, resample if encoder.keep_text else None)
    logging.info("%s: %s.", source.name, cleaning.summary(corpus.report["kept"], corpus.report["dropped"]))
    return corpus


def _content(encoder: Encoder) -> dict[str, Any]:
    """All that the corpus depends on."""
    return {
        "format": _FORMAT,
        "source": encoder.source.identity,
        "tokenizer": encoder.tokenizer.fingerprint,
        "rules": dataclasses.asdict(encoder.rules) if encoder.rules else None,
        "text": encoder.keep_text,
    }


def _encode(folder: Path, encoder: Encoder, wanted_workers: int) -> None:
    """Fills `folder` with all pairs of the encoder's source that pass."""
    source = encoder.source
    description = f"Encoding {source.name}"
    dropped = append_all(folder, encoder, _stretches(source), len(source), description, wanted_workers)
    kept = (folder / "offsets").stat().st_size // 8 if (folder / "offsets").exists() else 0
    if not kept:
        raise UserError(f"{source.name}: no pair is left of {len(source)}; {cleaning.summary(0, dropped)}")
    if (folder / "hashes").exists():
        rows = cleaning.first_occurrences(np.fromfile(folder / "hashes", np.uint64))
        dropped["duplicate"], kept = kept - len(rows), len(rows)
        storage.keep_rows(folder, rows)
        (folder / "hashes").unlink()
    counts = {reason: dropped[reason] for reason in cleaning.REASONS}
    report = {"source": source.identity, "kept": kept, "dropped": counts, "digest": storage.digest(folder)}
    _write_report(folder, report)


def _write_report(folder: Path, report: dict[str, Any]) -> None:
    """The last file of a folder: it has the sizes of the others."""
    files.write_json(folder / _REPORT, report | {"sizes": storage.sizes(folder)})


def _read_report(folder: Path) -> dict[str, Any]:
    """Raises UserError if a file is not as long as it was. (To read them all at every start would take too long.)"""
    report = json.loads((folder / _REPORT).read_text(encoding="utf-8"))
    found = storage.sizes(folder)
    for name, size in report["sizes"].items():
        if found.get(name) != size:
            raise UserError(
                f"{folder / name}: damaged, {found.get(name, 0)} bytes of {size}; delete {folder}, it is made again"
            )
    return report


def _stretches(source: sources.Source) -> Iterator[tuple[int, int, RawPairs | None]]:
    total = len(source)
    pairs = None if source.seekable else source.pairs(0, total)
    for start in range(0, total, _STRETCH):
        stop = min(start + _STRETCH, total)
        yield start, stop, None if pairs is None else list(itertools.islice(pairs, stop - start))


def _prepare_epoch(resampler: Resampler, wanted_workers: int) -> Path:
    """The folder of one epoch's encoding, inside its corpus, made if it is not there. The caller holds the lock."""
    epochs = resampler.folder / f"epochs-{resampler.seed}-{resampler.tokenizer.sampling}"
    epochs.mkdir(exist_ok=True)
    folder = epochs / str(resampler.epoch)
    if not folder.exists():
        total = len(storage.open_array(resampler.folder, "text_offsets"))
        stretches = [(start, min(start + _STRETCH, total)) for start in range(0, total, _STRETCH)]
        description = f"Encoding epoch {resampler.epoch + 1}"

        def fill(unfinished: Path) -> None:
            append_all(unfinished, resampler, stretches, total, description, wanted_workers)
            _write_report(unfinished, _read_report(resampler.folder))

        cache.make_folder(folder, fill)
    for earlier in epochs.iterdir():
        # Epoch 0 stays: the shapes of batches are chosen by its lengths, at every start of the run. So do the two
        # before this one, which another host may still be in: not every file system lets it keep what is deleted.
        if earlier.name.isdecimal() and 0 < int(earlier.name) < resampler.epoch - 2:
            shutil.rmtree(earlier)  # whoever has it mapped on this host keeps its content until they let go
    return folder
