"""The data that a plan is made for: of a run, or of a corpus of which only statistics of its lengths are known."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import logging

from transformer.config_types import Config
from transformer.data.corpus import corpus
from transformer.data.corpus.corpus import Corpus
from transformer.data.tokenizers import tokenizer
from transformer.errors import UserError
from transformer.workdir import open_existing

DRAWN = 200_000  # pairs at most; if few of them are long, the longest shape may have fewer rows than for the corpus
SPREAD = 0.6  # standard deviation of the logarithm of the source length
RATIO_SPREAD = 0.15  # the same for the ratio of target to source length


class Data(NamedTuple):
    """Training data, the sizes of the source and the target vocabulary, and a description of these."""

    corpus: Corpus
    vocab_sizes: tuple[int, int]
    description: str


class LengthStatistics(NamedTuple):
    """The number of training pairs and the mean tokens of a side, end-of-sentence included."""

    pairs: int
    source: float
    target: float


# WMT English-German as the paper's authors published it: fairseq-preprocess counts 132,886,171 English and 137,628,246
# German tokens, end-of-sentence included, in its 4,500,966 pairs with a BPE of 32,000.
WMT = LengthStatistics(4_500_966, 29.5, 30.6)


class AssumedCorpus(Corpus):
    """A corpus of lengths and no tokens, drawn from statistics with a fixed seed. Monolingual data has one side."""

    def __init__(self, statistics: LengthStatistics, data_config: Config) -> None:
        random, count = np.random.default_rng(0), min(statistics.pairs, DRAWN)
        source = random.lognormal(0.0, SPREAD, count)
        target = source * random.lognormal(0.0, RATIO_SPREAD, count)
        means = [statistics.source / source.mean(), statistics.target / target.mean()]
        lengths = np.maximum(np.rint(np.stack([source, target], axis=1) * means), 1).astype(np.int32)
        self.lengths = lengths[(lengths <= data_config.max_length).all(axis=1)]
        self.lengths *= np.array([bool(data_config.source_language), bool(data_config.target_language)])

    def __len__(self) -> int:
        return len(self.lengths)


def assume(config: Config, lengths: str | None) -> Data:
    """Returns a corpus of stated lengths. Raises UserError if `lengths` does not state them."""
    if config.tokenizer.subword_sampling > 0:
        logging.warning(
            "The plan assumes the best segmentation, but subword sampling lengthens sentences. The data of a run "
            "(--workdir) include that."
        )
    statistics, size = WMT if lengths is None else parse_statistics(lengths), config.tokenizer.vocab_size
    means = f"{statistics.source:g} source and {statistics.target:g} target tokens"
    description = f"{statistics.pairs:,} pairs, log-normal lengths with means of {means}; vocabulary of {size:,}"
    return Data(AssumedCorpus(statistics, config.data), (size, size), f"assumed: {description}")


def read(config: Config, workdir: Path) -> Data:
    """Returns the data of an existing run. Raises UserError if there is no such run, or no data."""
    open_existing(workdir)
    vocabulary = tokenizer.prepare(config, workdir)
    train = corpus.prepare(config, vocabulary, "train")
    sides = zip(("source", "target"), train.lengths.mean(axis=0), strict=True)
    means = " and ".join(f"{mean:.1f} {side}" for side, mean in sides if mean)
    sizes = " and ".join(f"{size:,}" for size in sorted(set(vocabulary.vocab_sizes)))
    lengths = f"{len(train):,} {train.unit} with means of {means} tokens"
    return Data(train, vocabulary.vocab_sizes, f"of {workdir}: {lengths}; vocabulary of {sizes}")


def parse_statistics(text: str) -> LengthStatistics:
    """Returns the statistics that `--lengths=PAIRS:SOURCE:TARGET` states. Raises UserError if it does not."""
    try:
        pairs, source, target = (float(part) for part in text.split(":"))
        statistics = LengthStatistics(int(pairs), source, target)
    except (ValueError, OverflowError):
        statistics = None
    if statistics is None or not (1 <= statistics.pairs < 2**40 and all(1 <= x < 2**16 for x in (source, target))):
        raise UserError(
            f"--lengths={text}: must be PAIRS:SOURCE:TARGET, the training pairs and the mean tokens of both sides, "
            "such as 4500966:29.5:30.6"
        )
    return statistics
