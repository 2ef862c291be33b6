"""The data of an estimate: of an existing run, or a corpus drawn from statistics of its lengths."""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from transformer.config.types import Config
from transformer.data.corpus import corpus
from transformer.data.corpus.corpus import Corpus
from transformer.data.tokenizers import tokenizer
from transformer.support.errors import UserError
from transformer.training.objectives import OBJECTIVES, unchanged_corpus
from transformer.workdir import open_existing

# Pairs of an assumed corpus at most. If few of them are long, the longest shape may have fewer rows
# than the whole corpus would give it.
MAX_PAIRS = 200_000
# Standard deviation of the logarithm of the source length.
SPREAD = 0.6
# Standard deviation of the logarithm of target length / source length.
RATIO_SPREAD = 0.15


class Data(NamedTuple):
    """Training data, the sizes of its source and target vocabularies, and a description."""

    corpus: Corpus
    vocab_sizes: tuple[int, int]
    description: str


class LengthStatistics(NamedTuple):
    """The number of training pairs, and the mean tokens of both sides with end-of-sentence."""

    pairs: int
    source: float
    target: float


# WMT English-German as the paper's authors published it, with a BPE of 32,000: fairseq-preprocess
# counts 4,500,966 pairs, 132,886,171 English and 137,628,246 German tokens with end-of-sentence.
WMT = LengthStatistics(4_500_966, 29.5, 30.6)


class AssumedCorpus(Corpus):
    """A corpus with lengths but no tokens, drawn from statistics with a fixed seed.

    Monolingual data has one side, but two after span corruption. The statistics are those after it.
    """

    def __init__(self, statistics: LengthStatistics, config: Config) -> None:
        random = np.random.default_rng(0)
        count = min(statistics.pairs, MAX_PAIRS)
        # Draw the source lengths and the ratios of target to source length.
        source = random.lognormal(0.0, SPREAD, count)
        target = source * random.lognormal(0.0, RATIO_SPREAD, count)

        # Scale both sides to the stated means, round, and drop what training would drop.
        scales = [statistics.source / source.mean(), statistics.target / target.mean()]
        lengths = np.rint(np.stack([source, target], axis=1) * scales)  # (pairs, 2)
        lengths = np.maximum(lengths, 1).astype(np.int32)
        fits = (lengths <= config.data.max_length).all(axis=1)
        has_side = [bool(config.data.source_language), bool(config.data.target_language)]
        if OBJECTIVES[config.training.objective].make_corpus is not unchanged_corpus:
            has_side = [True, True]
        lengths = lengths[fits] * has_side
        if config.batch.plan == "groups":
            # The candidates of a source are about equally long.
            candidates = config.batch.candidates
            lengths = np.repeat(lengths[: len(lengths) // candidates], candidates, axis=0)
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)


def assume(config: Config, lengths: str | None) -> Data:
    """Returns a corpus with the lengths of `--lengths`; by default, of WMT English-German.

    Raises UserError if `lengths` is invalid, or no pair fits.
    """
    statistics = WMT if lengths is None else parse_statistics(lengths)
    vocab_size = config.tokenizer.vocab_size
    max_length = config.data.max_length
    assumed_corpus = AssumedCorpus(statistics, config)
    if not len(assumed_corpus):
        raise UserError(
            f"--lengths={lengths or 'WMT'}: no pair fits in config.data.max_length={max_length}; "
            "raise it"
        )

    # The vocabulary of an assumed corpus is full on both sides.
    description = (
        f"assumed: {statistics.pairs:,} pairs, log-normal lengths with means of "
        f"{statistics.source:g} source and {statistics.target:g} target tokens; "
        f"vocabulary of {vocab_size:,}"
    )

    fitting = len(assumed_corpus) / min(statistics.pairs, MAX_PAIRS)
    if fitting < 0.99:
        description += (
            f"; {fitting:.0%} of the pairs fit in max_length={max_length}, and only these count"
        )
    return Data(assumed_corpus, (vocab_size, vocab_size), description)


def read(config: Config, workdir: Path) -> Data:
    """Returns the data of an existing run. Raises UserError if there is no such run, or no data."""
    _, run_config = open_existing(workdir)
    # The vocabulary is the one of the run, even if the config has other settings.
    vocabulary = tokenizer.prepare(run_config, workdir)
    make_corpus = OBJECTIVES[config.training.objective].make_corpus
    train = make_corpus(corpus.prepare(config, vocabulary, "train"), config, vocabulary)
    source, target = train.lengths.mean(axis=0)

    sizes = " and ".join(f"{size:,}" for size in sorted(set(vocabulary.vocab_sizes)))
    description = (
        f"of {workdir}: {len(train):,} sentences with means of {source:.1f} source and "
        f"{target:.1f} target tokens; vocabulary of {sizes}"
    )
    return Data(train, vocabulary.vocab_sizes, description)


def parse_statistics(text: str) -> LengthStatistics:
    """Returns the statistics of `--lengths=PAIRS:SOURCE:TARGET`.

    Raises UserError if the text has another form.
    """
    if not re.fullmatch(r"[1-9]\d{0,11}(:[1-9]\d{0,3}(\.\d+)?){2}", text):
        raise UserError(
            f"--lengths={text}: must be PAIRS:SOURCE:TARGET, the training pairs and the mean "
            "tokens of both sides, such as 4500966:29.5:30.6"
        )
    pairs, source, target = text.split(":")
    return LengthStatistics(int(pairs), float(source), float(target))
