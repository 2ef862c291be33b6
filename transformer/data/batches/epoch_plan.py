"""The batches of an epoch, as indices of sentences.

A plan is a pure function of (lengths, buckets, seed, epoch), so a batch is a pure function of its
epoch and number: a run resumes from two integers, and batches do not depend on the devices or hosts
that share them.
"""

import dataclasses

import numpy as np
from jaxtyping import Int, UInt16


@dataclasses.dataclass(frozen=True)
class Bucket:
    """The padded shape of a batch: source (rows, source_length), target (rows, target_length). 0:
    without this side.
    """

    rows: int
    source_length: int
    target_length: int

    def __str__(self) -> str:
        sides = {"source": self.source_length, "target": self.target_length}
        return f"{self.rows} rows x " + ", ".join(
            f"{length} {side}" for side, length in sides.items() if length
        )

    @property
    def width(self) -> int:
        """Positions of a row, both sides together."""
        return self.source_length + self.target_length

    @property
    def positions(self) -> int:
        """Positions of a batch, both sides together."""
        return self.rows * self.width


@dataclasses.dataclass(frozen=True)
class PlannedBatch:
    """The sentences of a batch and the row of each, in ascending order.

    `packed`: a row may hold several sentences.
    """

    bucket: Bucket
    sentences: Int[np.ndarray, " N"]
    rows: Int[np.ndarray, " N"]
    packed: bool = False


@dataclasses.dataclass(frozen=True)
class BucketStats:
    """The contents of a bucket in an epoch. With subword sampling, tokens are those reserved."""

    bucket: Bucket
    batches: int
    tokens: int  # of both sides, end-of-sentence included

    @property
    def positions(self) -> int:
        """Positions of both sides, filler rows included."""
        return self.batches * self.bucket.positions

    @property
    def padding_fraction(self) -> float:
        """Fraction of the positions that hold no token; 0 without batches."""
        return 1 - self.tokens / self.positions if self.positions else 0.0


@dataclasses.dataclass(frozen=True)
class EpochPlan:
    """The batches of an epoch, a sequence of `PlannedBatch`."""

    sentences: Int[np.ndarray, " N"]  # every sentence once, such that each batch is a slice
    slices: Int[np.ndarray, "M 2"]  # start and stop of each batch in `sentences`
    bucket_ids: UInt16[np.ndarray, " M"]  # the bucket of each batch
    stats: tuple[BucketStats, ...]  # the contents of each bucket, shortest first
    # of each packed sentence in its batch; None: one sentence a row
    rows: Int[np.ndarray, " N"] | None = None

    @property
    def padding_fraction(self) -> float:
        """Fraction of the epoch's positions, both sides together and filler rows included, that
        hold no token.
        """
        return 1 - sum(stats.tokens for stats in self.stats) / sum(
            stats.positions for stats in self.stats
        )

    def __len__(self) -> int:
        return len(self.slices)

    def __getitem__(self, number: int) -> PlannedBatch:
        start, stop = self.slices[number]
        packed = self.rows is not None
        rows = self.rows[start:stop] if packed else np.arange(stop - start)
        return PlannedBatch(
            self.stats[self.bucket_ids[number]].bucket, self.sentences[start:stop], rows, packed
        )
