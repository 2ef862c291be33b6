"""Corpora of which only statistics are known: lengths to plan batches with where the data are not there."""

import dataclasses

import numpy as np

from transformer.config_types import Config
from transformer.data.corpus.corpus import Corpus
from transformer.errors import UserError

# Pairs at most. Times are means over the batches of these pairs. If few of them are long, the longest shape may have
# fewer rows than for the whole corpus.
DRAWN = 200_000
SPREAD = 0.6  # standard deviation of the logarithm of the source length
RATIO_SPREAD = 0.15  # the same for the ratio of target to source length


@dataclasses.dataclass(frozen=True)
class LengthStatistics:
    """The number of training pairs and the mean tokens of a side, end-of-sentence included."""

    pairs: int
    source: float
    target: float

    def __str__(self) -> str:
        return (
            f"{self.pairs:,} pairs, log-normal lengths with means of {self.source:g} source and {self.target:g} target "
            f"tokens"
        )


# WMT English-German as the paper's authors published it: fairseq-preprocess counts 132,886,171 English and 137,628,246
# German tokens, end-of-sentence included, in its 4,500,966 pairs with a BPE of 32,000.
WMT = LengthStatistics(4_500_966, 29.5, 30.6)


class AssumedCorpus(Corpus):
    """A corpus of lengths and no tokens, drawn from statistics with a fixed seed. Monolingual data has one side."""

    def __init__(self, statistics: LengthStatistics, data: Config) -> None:
        random, count = np.random.default_rng(0), min(statistics.pairs, DRAWN)
        source = random.lognormal(0.0, SPREAD, count)
        target = source * random.lognormal(0.0, RATIO_SPREAD, count)
        sides = [
            side * (mean / side.mean()) for side, mean in ((source, statistics.source), (target, statistics.target))
        ]
        lengths = np.maximum(np.rint(np.stack(sides, axis=1)), 1).astype(np.int32)
        self.lengths = lengths[(lengths <= data.max_length).all(axis=1)]
        self.lengths *= np.array([bool(data.source_language), bool(data.target_language)])

    def __len__(self) -> int:
        return len(self.lengths)


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
