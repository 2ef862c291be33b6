"""A split as tokens: encoded once by several processes, then memory-mapped from the cache."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from jaxtyping import Bool, Int, Int32, UInt64

from transformer.config.types import Config
from transformer.data.corpus import encoding
from transformer.data.corpus.annotations import Annotations, Sequences, word_starts
from transformer.data.corpus.encoding import REPORT, open_array
from transformer.data.corpus.epoch import Epoch, Sampler, pairs_of_epoch
from transformer.data.languages import source_tag
from transformer.data.sources.lines import log_documents
from transformer.data.sources.mixture import MixedSource, held_out_sets
from transformer.data.sources.source import open_source, read_pairs
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.support import cache, files
from transformer.support.errors import UserError

_FORMAT = 11  # part of every key: raise it when the same inputs would give other files
_LINKED_SAMPLE = 2000  # pairs, spread over the corpus, whose links are checked
_MAX_DROPPED = 0.05  # fraction of the pairs that may be dropped without a warning


class Corpus:
    """Pairs of sentences as tokens, each sentence with its end-of-sentence, in memory-mapped files.

    Monolingual pairs have a side without tokens. Raises UserError if a file in `folder` is damaged.

    Attributes:
      lengths: tokens of each source and target, end-of-sentence included; 0 for a side that the
          pairs do not have.
      report: `kept`, `dropped` by reason, the `digest` of all pairs, `losses` of a sample
        (`losses_of_pairs`), and the number of pairs kept of each of the `parts` of a mixture; with
        context, `documents` of each source by name.
      sampler: samples the sentences of each epoch; None without subword sampling. names, weights:
      of each part of a mixture, and how many times an epoch reads its pairs; else empty.
      starts: `Annotations.starts`, where words have links.
    """

    sampler: Sampler | None = None
    names: Sequence[str] = ()
    weights: Sequence[float] = ()
    starts: Sequence[Bool[np.ndarray, "_"]] = ()

    def __init__(self, folder: Path) -> None:
        self._folder = folder

        def check(report: dict[str, Any]) -> dict[str, Any]:
            # to verify checksums at every start would take too long
            for name, size in report["sizes"].items():
                if (actual := (folder / name).stat().st_size) != size:
                    raise ValueError(f"{name} has {actual} bytes of {size}")
            return report

        self.report = files.read_json(
            folder / REPORT, check, f"delete {folder}, and the next run prepares it again"
        )
        self.lengths: Int32[np.ndarray, "N 2"] = open_array(folder, "lengths")
        self._offsets = open_array(folder, "offsets")
        self._tokens = open_array(folder, "tokens", self.report["dtype"])
        optional = ("weights", "links", "link_spans")
        self._annotations = {
            name: open_array(folder, name) for name in optional if name in self.report["sizes"]
        }

    def __reduce__(self):
        return Corpus, (self._folder,)  # without the sampler, which other processes get

    def __len__(self) -> int:
        return len(self._offsets)

    def spread(self, count: int) -> Int[np.ndarray, "M"]:
        """Returns the numbers of at most `count` pairs, spread evenly over the corpus."""
        count = min(count, len(self))
        return np.arange(count) * len(self) // count

    def tokens(self, side: int, pairs: Int[np.ndarray, "N"]) -> Int32[np.ndarray, "P"]:
        """Returns the concatenated sources (side 0) or targets (side 1) of these pairs."""
        lengths = self.lengths[pairs]
        starts = self._offsets[pairs] + (lengths[:, 0] if side == 1 else 0)
        counts = lengths[:, side]
        return self._tokens[np.repeat(starts, counts) + ragged_arange(counts)].astype(np.int32)

    def find_hashes(self, name: str, wanted: UInt64[np.ndarray, "M"]) -> Bool[np.ndarray, "M"]:
        """Returns which of the values are in the file of hashes, which is sorted."""
        hashes = open_array(self._folder, name)
        return hashes[np.searchsorted(hashes, wanted).clip(max=len(hashes) - 1)] == wanted

    def sequences(self, side: int, pairs: Int[np.ndarray, "N"]) -> Sequences:
        """Returns the concatenated tokens of these sources or targets, and their lengths."""
        return self.tokens(side, pairs), self.lengths[pairs, side]

    def annotations(self, pairs: Int[np.ndarray, "N"]) -> Annotations:
        """Returns the weights and links of these pairs."""
        chosen = {
            name: array[pairs] for name, array in self._annotations.items() if name != "links"
        }
        spans = chosen.get("link_spans")
        links = (
            None if spans is None else [self._annotations["links"][slice(*span)] for span in spans]
        )
        return Annotations(chosen.get("weights"), links, self.starts)

    def check_weights(self) -> None:
        """Raises UserError if all pairs have weight 0 in the loss. Warns if all of a part have."""
        if (weights := self._annotations.get("weights")) is None:
            return
        parts = np.split(weights, np.cumsum(self.report["parts"])[:-1])
        for name, own in zip(self.names, parts, strict=True):
            if not own.any():
                logging.warning("All pair_weights of %s are 0: nothing is learned from it.", name)
        if not weights.any():
            raise UserError("config.data.mixture: all pair_weights are 0; correct the files")

    def sentences(self, side: int, pairs: Int[np.ndarray, "N"]) -> list[list[int]]:
        """Returns the tokens of each of these sources or targets, without end-of-sentence."""
        tokens, lengths = self.sequences(side, pairs)
        return [sentence[:-1].tolist() for sentence in np.split(tokens, np.cumsum(lengths))[:-1]]

    def epoch(self, epoch: int, seed: int, draw: Callable[..., Sequences] | None = None) -> Epoch:
        """Returns the pairs that this epoch reads: sampled by `draw` or `sampler` with subword
        sampling.
        """
        numbers = (
            pairs_of_epoch(self.report["parts"], self.weights, seed, epoch)
            if self.weights
            else None
        )
        return Epoch(self, numbers, draw or self.sampler, seed, epoch)

    def all_pairs(self) -> Epoch:
        """Returns all pairs, each once, with the lengths that plans reserve in every epoch."""
        return Epoch(self, None, self.sampler, seed=0, epoch=0)


def ragged_arange(counts: Int[np.ndarray, " N"]) -> Int[np.ndarray, " P"]:
    """Concatenates the ranges of several counts: [2, 3] gives [0, 1, 0, 1, 2]."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def prepare(config: Config, tokenizer: Tokenizer, split: str) -> Corpus:
    """Loads the corpus of a split from the cache, or encodes it.

    Raises UserError if the data leaves no pair.
    """
    data, source = config.data, open_source(config.data, split)
    is_mixed = isinstance(source, MixedSource)
    tags = tuple(part.tag for part in source.corpora) if is_mixed else (tokenizer.source_tag,)
    rules = encoding.Rules()
    if split == "train":
        rules = encoding.Rules(data.max_length, data.max_length_ratio, data.deduplicate)
    identity = {  # everything that the files depend on
        "format": _FORMAT,
        "source": source.identity,
        "tokenizer": tokenizer.fingerprint,
        "tags": tags,
        "rules": dataclasses.asdict(rules),
    }
    name = f"{data.name.replace('/', '-')}-{split}-{cache.key(identity)}"
    folder = cache.folder(data.cache_dir) / "corpora" / name

    def fill(unfinished: Path) -> None:
        if split != "train":
            read_pairs(data, split)  # raises UserError with the line that is not UTF-8
        sides = tuple(
            side for side, key in enumerate(("source_language", "target_language")) if data[key]
        )
        encoding.encode(
            unfinished, source, encoding.PairEncoder(tokenizer, rules, sides, tags), data.workers
        )

    cache.make_once(folder, fill, data.wait_seconds)
    corpus = Corpus(folder)
    if split == "train" and (rate := config.tokenizer.subword_sampling):
        corpus.sampler = Sampler(corpus, tokenizer, rate, data.max_length)
    if is_mixed:
        corpus.names = [part.label for part in source.corpora]
        corpus.weights = source.weigh(counts := corpus.report["parts"])
        for label, count, weight in zip(corpus.names, counts, corpus.weights, strict=True):
            logging.info(
                "An epoch reads each of the %s pairs of %s %.4g times.", f"{count:,}", label, weight
            )
        corpus.check_weights()
        if any(source.paths("alignments")):
            corpus.starts = [word_starts(side.pieces) for side in tokenizer.sides]
            pairs = corpus.spread(_LINKED_SAMPLE)
            corpus.annotations(pairs).check_links(
                [corpus.sequences(side, pairs) for side in (0, 1)]
            )
    for name, documents in corpus.report.get("documents", {}).items():  # absent from older reports
        log_documents(name, documents)
    kept = corpus.report["kept"]
    dropped = corpus.report["dropped"]
    total = sum(dropped.values())
    level = logging.WARNING if total > _MAX_DROPPED * (total + kept) else logging.INFO
    logging.log(level, "%s: %s.", source.name, encoding.summary(kept, dropped))
    return corpus


def prepare_validation(config: Config, tokenizer: Tokenizer) -> list[Corpus]:
    """Prepares the corpus of each validation set, in the order of `held_out_sets`."""
    sets = held_out_sets(config).values()
    return [
        prepare(set_config, tokenizer.tagged(source_tag(set_config.data)), "valid")
        for set_config in sets
    ]
