"""A split as tokens: encoded once by several processes, then memory-mapped from the cache."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from jaxtyping import Bool, Int, Int32

from transformer.config.types import Config
from transformer.data.corpus import encoding
from transformer.data.corpus.annotations import Annotations, PairNumbers, Sequences, word_starts
from transformer.data.corpus.encoding import REPORT, open_array
from transformer.data.corpus.epoch import Epoch, Sampler, pairs_of_epoch
from transformer.data.languages import source_tag
from transformer.data.sources.lines import log_documents
from transformer.data.sources.mixture import MixedSource, held_out_sets
from transformer.data.sources.source import open_source, read_pairs
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.support import cache, files
from transformer.support.errors import UserError

# Part of every key in the cache: raise it when the same inputs would give other files.
_FORMAT = 12
_LINKED_SAMPLE = 2000  # pairs, spread over the corpus, whose links are checked
_MAX_DROPPED = 0.05  # fraction of the pairs that may be dropped without a warning


class Corpus:
    """Pairs of sentences as tokens, each sentence with end-of-sentence, in memory-mapped files.

    Monolingual pairs have a side without tokens. Raises UserError if a file in `folder` is damaged.

    Attributes:
      lengths: tokens of each source and target, end-of-sentence included; 0 for a side that the
        pairs do not have.
      report: `kept`, the number of pairs; `dropped`, the number of dropped pairs by reason;
        `digest`, of all pairs; `losses` of a sample (`losses_of_pairs`); `parts`, the number of
        pairs of each part of a mixture; with context, `documents`, their number by source.
      name: of its files, in messages.
      sampler: samples the sentences of each epoch; None without subword sampling.
      names, weights: the name of each part of a mixture, and how many times an epoch reads its
        pairs; empty without a mixture.
      starts: `Annotations.starts` if words have links.
    """

    name = ""
    sampler: Sampler | None = None
    names: Sequence[str] = ()
    weights: Sequence[float] = ()
    starts: Sequence[Bool[np.ndarray, " _"]] = ()

    def __init__(self, folder: Path) -> None:
        self.folder = folder

        def check(report: dict[str, Any]) -> dict[str, Any]:
            # The verification of checksums at every start would take too long.
            for name, size in report["sizes"].items():
                actual = (folder / name).stat().st_size
                if actual != size:
                    raise ValueError(f"{name} has {actual} bytes of {size}")
            return report

        advice = f"delete {folder}, and the next run prepares it again"
        self.report = files.read_json(folder / REPORT, check, advice)
        self.lengths: Int32[np.ndarray, "N 2"] = open_array(folder, "lengths")
        self._offsets = open_array(folder, "offsets")
        self._tokens = open_array(folder, "tokens", self.report["dtype"])

        # Only the files of a mixture with annotations have these arrays.
        self._annotations = {
            name: open_array(folder, name)
            for name in ("weights", "rewards", "links", "link_spans")
            if name in self.report["sizes"]
        }

    def __reduce__(self):
        return Corpus, (self.folder,)  # without the sampler, which other processes get

    def __len__(self) -> int:
        return len(self._offsets)

    def spread(self, count: int) -> PairNumbers:
        """Returns the numbers of at most `count` pairs, spread evenly over the corpus."""
        count = min(count, len(self))
        return np.arange(count) * len(self) // count

    def tokens(self, side: int, pairs: PairNumbers) -> Int32[np.ndarray, " P"]:
        """Returns the concatenated sources (side 0) or targets (side 1) of these pairs."""
        lengths = self.lengths[pairs]  # (N, 2)
        starts = self._offsets[pairs]
        if side == 1:  # a target follows its source
            starts = starts + lengths[:, 0]
        counts = lengths[:, side]
        indices = np.repeat(starts, counts) + ragged_arange(counts)
        return self._tokens[indices].astype(np.int32)

    def sequences(self, side: int, pairs: PairNumbers) -> Sequences:
        """Returns the concatenated tokens of these sources or targets, and their lengths."""
        return self.tokens(side, pairs), self.lengths[pairs, side]

    def sentences(self, side: int, pairs: PairNumbers) -> list[list[int]]:
        """Returns the tokens of each of these sources or targets, without end-of-sentence."""
        tokens, lengths = self.sequences(side, pairs)
        sentences = np.split(tokens, np.cumsum(lengths))[:-1]
        return [sentence[:-1].tolist() for sentence in sentences]

    def find_texts(self, texts: Sequence[tuple[str, str]]) -> list[Bool[np.ndarray, " N"]]:
        """Returns the masks of the pairs, and of their sources, that occur in the corpus."""
        masks = []
        for name, values in encoding.content_hashes(texts).items():
            hashes = open_array(self.folder, name)  # sorted
            indices = np.searchsorted(hashes, values).clip(max=len(hashes) - 1)
            masks.append(hashes[indices] == values)
        return masks

    def annotations(self, pairs: PairNumbers) -> Annotations:
        """Returns the weights, rewards and links of these pairs."""
        names = self._annotations.keys() & {"weights", "rewards"}
        numbers = {name: self._annotations[name][pairs] for name in names}

        # A span gives the rows of a pair in `links`.
        links = None
        if "links" in self._annotations:
            rows = self._annotations["links"]
            spans = self._annotations["link_spans"][pairs]  # (N, 2)
            links = [rows[begin:end] for begin, end in spans]
        return Annotations(**numbers, links=links, starts=self.starts)

    def check_weights(self) -> None:
        """Warns of parts with the weight 0 in the loss. Raises UserError if all pairs have it."""
        weights = self._annotations.get("weights")
        if weights is None:
            return
        parts = np.split(weights, np.cumsum(self.report["parts"])[:-1])
        for name, part_weights in zip(self.names, parts, strict=True):
            if not part_weights.any():
                logging.warning("All pair_weights of %s are 0: nothing is learned from it.", name)
        if not weights.any():
            raise UserError("config.data.mixture: all pair_weights are 0; correct the files")

    def check_rewards(self, count: int, likelihood_weight: float) -> None:
        """Warns if all sources have `count` candidates with equal rewards.

        Raises UserError if the likelihood has no weight either, so that nothing is learned.
        """
        rewards = self._annotations["rewards"].reshape(-1, count)
        if (rewards != rewards[:, :1]).any():
            return
        message = "the candidates of each source have equal rewards"
        if not likelihood_weight:
            raise UserError(
                f"config.data.mixture: {message}, so that nothing is learned; correct the files, "
                "or set config.training.likelihood_weight above 0"
            )
        logging.warning("Only the likelihood of the first candidate is learned: %s.", message)

    def epoch(self, epoch: int, seed: int) -> Epoch:
        """Returns the pairs that this epoch reads."""
        numbers = None  # all pairs
        if self.weights:
            numbers = pairs_of_epoch(self.report["parts"], self.weights, seed, epoch)
        return Epoch(self, numbers, self.sampler, seed, epoch)

    def all_pairs(self) -> Epoch:
        """Returns all pairs, each once, with the lengths that plans reserve in every epoch."""
        return Epoch(self, None, self.sampler, seed=0, epoch=0)


def ragged_arange(counts: Int[np.ndarray, " N"]) -> Int[np.ndarray, " P"]:
    """Concatenates the ranges of several counts, as in [0, 1, 0, 1, 2] for [2, 3]."""
    starts = np.cumsum(counts) - counts
    return np.arange(counts.sum()) - np.repeat(starts, counts)


def prepare(config: Config, tokenizer: Tokenizer, split: str) -> Corpus:
    """Loads the corpus of a split from the cache, or encodes it.

    Raises UserError if the data leaves no pair.
    """
    data = config.data
    is_train = split == "train"
    source = open_source(data, split)
    tags: tuple[str, ...] = (tokenizer.source_tag,)
    if isinstance(source, MixedSource):
        tags = tuple(part.tag for part in source.corpora)
    rules = encoding.Rules()
    if is_train:
        candidates = config.batch.candidates if config.batch.plan == "groups" else 1
        rules = encoding.Rules(data.max_length, data.max_length_ratio, data.deduplicate, candidates)

    # The key in the cache has everything that the files depend on.
    identity = {
        "format": _FORMAT,
        "source": source.identity,
        "tokenizer": tokenizer.fingerprint,
        "tags": tags,
        "rules": dataclasses.asdict(rules),
    }
    name = f"{data.name.replace('/', '-')}-{split}-{cache.digest_of(identity)}"
    folder = cache.cache_folder(data.cache_dir) / "corpora" / name

    def fill(unfinished: Path) -> None:
        if not is_train:
            read_pairs(data, split)  # raises UserError with the line that is not UTF-8
        languages = data.source_language, data.target_language
        sides = tuple(side for side, language in enumerate(languages) if language)
        encoder = encoding.PairEncoder(tokenizer, rules, sides, tags)
        encoding.encode(unfinished, source, encoder, data.workers)

    cache.make_once(folder, fill, data.wait_seconds)
    corpus = Corpus(folder)
    corpus.name = source.name

    # What the files do not have: samples, and the weights and words of a mixture.
    rate = config.tokenizer.subword_sampling
    if is_train and rate:
        corpus.sampler = Sampler(corpus, tokenizer, rate, data.max_length)
    if isinstance(source, MixedSource):
        _add_mixture(corpus, source, tokenizer)
        if any(source.paths("rewards")):
            corpus.check_rewards(config.batch.candidates, config.training.likelihood_weight)
    _log_report(corpus)
    return corpus


def _add_mixture(corpus: Corpus, source: MixedSource, tokenizer: Tokenizer) -> None:
    """Sets the attributes of a mixture, and checks its annotations."""
    counts = corpus.report["parts"]
    corpus.names = [part.label for part in source.corpora]
    corpus.weights = source.weigh(counts)
    message = "An epoch reads each of the %s pairs of %s %.4g times."
    for name, count, weight in zip(corpus.names, counts, corpus.weights, strict=True):
        logging.info(message, f"{count:,}", name, weight)

    corpus.check_weights()
    if any(source.paths("alignments")):
        corpus.starts = [word_starts(side.pieces) for side in tokenizer.sides]
        pairs = corpus.spread(_LINKED_SAMPLE)
        sides = [corpus.sequences(side, pairs) for side in (0, 1)]
        corpus.annotations(pairs).check_links(sides)


def _log_report(corpus: Corpus) -> None:
    """Logs the number of documents, and the pairs that were kept and dropped."""
    documents = corpus.report.get("documents", {})  # absent from older reports
    for source_name, count in documents.items():
        log_documents(source_name, count)

    num_kept = corpus.report["kept"]
    dropped = corpus.report["dropped"]
    num_dropped = sum(dropped.values())
    is_warning = num_dropped > _MAX_DROPPED * (num_dropped + num_kept)
    level = logging.WARNING if is_warning else logging.INFO
    logging.log(level, "%s: %s.", corpus.name, encoding.summary(num_kept, dropped))


def prepare_validation(config: Config, tokenizer: Tokenizer) -> list[Corpus]:
    """Prepares the corpus of each validation set, in the order of `held_out_sets`."""
    corpora = []
    for set_config in held_out_sets(config).values():
        set_tokenizer = tokenizer.with_tag(source_tag(set_config.data))
        corpora.append(prepare(set_config, set_tokenizer, "valid"))
    return corpora
