"""A split as tokens: encoded once by several processes, then memory-mapped from the cache."""

import dataclasses
import itertools
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from jaxtyping import Bool, Int, Int32

from transformer import cache, progress_bar
from transformer.config_types import Config
from transformer.data.corpus import encoding, storage, workers
from transformer.data.corpus.encoding import Losses
from transformer.data.corpus.sampling import SampledEpoch, Sampler, Sequences
from transformer.data.sources.source import Source, decoded, open_source, read_pairs
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.errors import UserError

_FORMAT = 7  # part of every key: raise it when the same inputs would give other files
_CHUNK = 8192  # pairs encoded at once
_SMALL = 50_000  # pairs that one process encodes in about the time it takes to start others
_MAX_DROPPED = 0.05  # fraction of the pairs that may be dropped without a warning


class Corpus:
    """Pairs of sentences as tokens, each sentence with its end-of-sentence, in memory-mapped files.

    Monolingual pairs have a side without tokens.

    Attributes:
      lengths: tokens of each source and target, end-of-sentence included; 0 for a side that the pairs do not have.
      report: `kept`, `dropped` by reason, the `digest` of all pairs, `losses` of each side (`encoding.count_losses`),
        and `invalid`, the error about the first side that is not UTF-8.
      sampler: samples the sentences of each epoch; None without subword sampling.
    """

    lengths: Int32[np.ndarray, "N 2"]
    report: dict[str, Any]
    sampler: Sampler | None = None

    def __init__(self, folder: Path, sampler: Sampler | None = None) -> None:
        self.sampler, self._folder = sampler, folder
        self.report = storage.read_report(folder)
        self.lengths = storage.open_array(folder, "lengths")
        self._offsets = storage.open_array(folder, "offsets")
        self._tokens = storage.open_array(folder, "tokens", self.report["dtype"])

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def unit(self) -> str:
        """The word for what the corpus counts."""
        return "pairs" if self.lengths.any(axis=0).all() else "sentences"

    def tokens(self, side: int, pairs: Int[np.ndarray, "N"]) -> Int32[np.ndarray, "P"]:
        """Returns the concatenated sources (side 0) or targets (side 1) of these pairs."""
        lengths = self.lengths[pairs]
        starts = self._offsets[pairs] + (lengths[:, 0] if side == 1 else 0)
        counts = lengths[:, side].astype(np.int64)
        first = np.cumsum(counts) - counts
        return self._tokens[np.arange(counts.sum()) + np.repeat(starts - first, counts)].astype(np.int32)

    def find_hashes(self, name: str, wanted: Sequence[int]) -> Bool[np.ndarray, "M"]:
        """Returns which of the values are in the file of hashes, which is sorted."""
        hashes, values = storage.open_array(self._folder, name), np.array(wanted, np.uint64)
        return hashes[np.searchsorted(hashes, values).clip(max=len(hashes) - 1)] == values

    def sequences(self, side: int, pairs: Int[np.ndarray, "N"]) -> Sequences:
        """Returns the concatenated tokens of these sources or targets, and their lengths."""
        return self.tokens(side, pairs), self.lengths[pairs, side]

    def epoch(self, epoch: int, seed: int, draw: Callable[..., Sequences] | None = None) -> "EpochPairs":
        """Returns the pairs as this epoch sees them: sampled by `draw` or `sampler` with subword sampling."""
        if self.sampler is None:
            return self
        return SampledEpoch(self.lengths, self.sampler.reserved_lengths, draw or self.sampler, seed, epoch)


EpochPairs = Corpus | SampledEpoch  # what an epoch is planned for and its batches are filled with


def prepare(config: Config, tokenizer: Tokenizer, split: str) -> Corpus:
    """Loads the corpus of a split from the cache, after encoding it if it is missing.

    Only the training split is cleaned; held-out splits lose only pairs with an empty side. Raises UserError if the data
    is missing or unusable, or no pair is left.
    """
    data, source = config.data, open_source(config.data, split)
    rules, rate = encoding.NO_LIMITS, 0.0
    if split == "train":
        rules = encoding.Rules(data.max_length, data.max_length_ratio, data.deduplicate)
        rate = config.tokenizer.subword_sampling
    identity = {  # everything that the files depend on
        "format": _FORMAT,
        "source": source.identity,
        "tokenizer": tokenizer.fingerprint,
        "rules": dataclasses.asdict(rules),
        "text": rate > 0,
    }
    name = f"{data.name.replace('/', '-')}-{split}-{cache.key(identity)}"
    folder = cache.folder(data.cache_dir) / "corpora" / name

    def fill(unfinished: Path) -> None:
        if split != "train":
            read_pairs(data, split)  # raises UserError with the line that is not UTF-8
        sides = tuple(side for side, key in enumerate(("source_language", "target_language")) if data[key])
        _encode(unfinished, source, encoding.PairEncoder(tokenizer, rules, rate > 0, sides), data.workers)

    cache.make_once(folder, fill, data.wait_seconds)
    corpus = Corpus(folder, Sampler(folder, tokenizer, rate, data.max_length) if rate else None)
    kept, dropped = corpus.report["kept"], corpus.report["dropped"]
    total = sum(dropped.values())
    level = logging.WARNING if total > _MAX_DROPPED * (total + kept) else logging.INFO
    logging.log(level, "%s: %s.", source.name, encoding.summary(kept, dropped, corpus.report["invalid"]))
    return corpus


def _encode(folder: Path, source: Source, encoder: encoding.PairEncoder, wanted_workers: int) -> None:
    """Fills `folder` with the pairs of the source that satisfy the encoder's rules."""
    dropped, losses = _write(folder, source, encoder, wanted_workers)
    kept, invalid = len(source) - dropped.total(), ""
    if dropped["invalid_utf8"]:
        try:
            deque(decoded(source), maxlen=0)
        except UserError as error:
            invalid = str(error)
    if not kept:
        raise UserError(f"{source.name}: no pair is left of {len(source)}; {encoding.summary(0, dropped, invalid)}")
    if encoder.rules.deduplicate:
        is_first = storage.is_first_occurrence(storage.open_array(folder, "hashes"))
        storage.keep_rows(folder, is_first)
        dropped["duplicate"] = kept - int(is_first.sum())
    for name in storage.HASHES:
        storage.open_array(folder, name, mode="r+").sort()
    report = {
        "kept": kept - dropped["duplicate"],
        "dropped": {reason: dropped[reason] for reason in encoding.REASONS},
        "dtype": str(storage.token_dtype(encoder.tokenizer.vocab_sizes)),
        "losses": losses,
        "invalid": invalid,
    }
    storage.write_report(folder, report)


def _write(
    folder: Path, source: Source, encoder: encoding.PairEncoder, wanted_workers: int
) -> tuple[Counter, tuple[Losses, Losses]]:
    """Writes the encoded pairs to files in `folder`. Returns the numbers of dropped pairs, and the losses."""
    total, pairs = len(source), iter(source)
    chunks = iter(lambda: list(itertools.islice(pairs, _CHUNK)), [])
    processes = 1 if total <= _SMALL and not wanted_workers else workers.num_workers(wanted_workers)
    dropped, losses, ends = Counter(), ((Counter(), {}), (Counter(), {})), Counter()
    with progress_bar.bar(f"Encoding {source.name}", total) as advance:
        for arrays, more_dropped, more_losses in workers.map_ordered(encoder, chunks, processes):
            for prefix in ("", "text_") if encoder.keep_text else ("",):
                sizes = arrays[f"{prefix}lengths"].sum(axis=1, dtype=np.int64)
                arrays[f"{prefix}offsets"] = ends[prefix] + np.cumsum(sizes) - sizes
                ends[prefix] += int(sizes.sum())
            for name, array in arrays.items():
                with (folder / name).open("ab") as file:
                    file.write(array.tobytes())
            dropped += more_dropped
            for (counts, examples), (more_counts, more_examples) in zip(losses, more_losses, strict=True):
                counts.update(more_counts)
                examples |= more_examples | examples
            advance(len(arrays["lengths"]) + more_dropped.total())
    return dropped, losses
