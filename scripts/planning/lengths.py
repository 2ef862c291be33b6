"""The data that a plan is made for: of a run, or of a corpus of which only statistics of its
lengths are known.
"""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from transformer.config.types import Config
from transformer.data.corpus import corpus
from transformer.data.corpus.corpus import Corpus
from transformer.data.tokenizers import tokenizer
from transformer.support.errors import UserError
from transformer.workdir import open_existing

# pairs at most; if few of them are long, the longest shape may have fewer rows than for the corpus
DRAWN = 200_000
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


# WMT English-German as the paper's authors published it: fairseq-preprocess counts 132,886,171
# English and 137,628,246 German tokens, end-of-sentence included, in its 4,500,966 pairs with a BPE
# of 32,000.
WMT = LengthStatistics(4_500_966, 29.5, 30.6)


class AssumedCorpus(Corpus):
    """A corpus of lengths and no tokens, drawn from statistics with a fixed seed.

    Monolingual data has one side.
    """

    def __init__(self, statistics: LengthStatistics, data_config: Config) -> None:
        random = np.random.default_rng(0)
        count = min(statistics.pairs, DRAWN)
        source = random.lognormal(0.0, SPREAD, count)
        target = source * random.lognormal(0.0, RATIO_SPREAD, count)
        means = [statistics.source / source.mean(), statistics.target / target.mean()]
        lengths = np.maximum(np.rint(np.stack([source, target], axis=1) * means), 1).astype(
            np.int32
        )
        self.lengths = lengths[(lengths <= data_config.max_length).all(axis=1)]
        self.lengths *= np.array(
            [bool(data_config.source_language), bool(data_config.target_language)]
        )

    def __len__(self) -> int:
        return len(self.lengths)


def assume(config: Config, lengths: str | None) -> Data:
    """Returns a corpus of stated lengths.

    Raises UserError if `lengths` does not state them, or no pair fits.
    """
    statistics = WMT if lengths is None else parse_statistics(lengths)
    size = config.tokenizer.vocab_size
    assumed = AssumedCorpus(statistics, config.data)
    longest = config.data.max_length
    if not len(assumed):
        raise UserError(
            f"--lengths={lengths or 'WMT'}: no pair fits in config.data.max_length={longest}; raise it"
        )
    fitting = len(assumed) / min(statistics.pairs, DRAWN)
    means = f"{statistics.source:g} source and {statistics.target:g} target tokens"
    description = f"{statistics.pairs:,} pairs, log-normal lengths with means of {means}; vocabulary of {size:,}"
    if fitting < 0.99:
        description += (
            f"; {fitting:.0%} of the pairs fit in max_length={longest}, and only these count"
        )
    return Data(assumed, (size, size), f"assumed: {description}")


def read(config: Config, workdir: Path) -> Data:
    """Returns the data of an existing run. Raises UserError if there is no such run, or no data."""
    _, trained = open_existing(workdir)
    vocabulary = tokenizer.prepare(trained, workdir)
    train = corpus.prepare(config, vocabulary, "train")
    source, target = train.lengths.mean(axis=0)
    means = f"{source:.1f} source and {target:.1f} target tokens"
    sizes = " and ".join(f"{size:,}" for size in sorted(set(vocabulary.vocab_sizes)))
    description = f"{len(train):,} sentences with means of {means}; vocabulary of {sizes}"
    return Data(train, vocabulary.vocab_sizes, f"of {workdir}: {description}")


def parse_statistics(text: str) -> LengthStatistics:
    """Returns the statistics that `--lengths=PAIRS:SOURCE:TARGET` states.

    Raises UserError if it does not.
    """
    if not re.fullmatch(r"[1-9]\d{0,11}(:[1-9]\d{0,3}(\.\d+)?){2}", text):
        raise UserError(
            f"--lengths={text}: must be PAIRS:SOURCE:TARGET, the training pairs and the mean tokens of both sides, "
            "such as 4500966:29.5:30.6"
        )
    pairs, source, target = text.split(":")
    return LengthStatistics(int(pairs), float(source), float(target))
