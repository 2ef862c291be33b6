"""The batches of an epoch, as indices of sentences.

A plan is a pure function of (lengths, buckets, seed, epoch), so a batch is a pure function of its epoch and number: a
run resumes from two integers, and batches do not depend on the devices or hosts that share them.
"""

import dataclasses

import numpy as np
from jaxtyping import Int, UInt16


@dataclasses.dataclass(frozen=True)
class Bucket:
    """The padded shape of a batch: source (rows, source_length), target (rows, target_length)."""

    rows: int
    source_length: int
    target_length: int

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
    """The sentences of a batch and the row of each, in ascending order. `packed`: a row may hold several sentences."""

    bucket: Bucket
    sentences: Int[np.ndarray, " N"]
    rows: Int[np.ndarray, " N"]
    packed: bool = False


@dataclasses.dataclass(frozen=True)
class BucketStats:
    """The contents of a bucket in an epoch. `tokens` count both sides, end-of-sentence included."""

    bucket: Bucket
    batches: int
    sentences: int
    tokens: int

    @property
    def positions(self) -> int:
        """Positions of both sides, filler rows included."""
        return self.batches * self.bucket.positions


@dataclasses.dataclass(frozen=True)
class EpochPlan:
    """The batches of an epoch: `len(plan)` of them, `plan[i]` the i-th.

    Attributes:
      sentences: every sentence once, such that each batch is a slice.
      slices: start and stop of each batch in `sentences`.
      bucket_ids: the bucket of each batch.
      stats: the contents of each bucket, shortest first.
      rows: the row of each sentence within its batch if sentences are packed; None: each has a row to itself.
    """

    sentences: Int[np.ndarray, " N"]
    slices: Int[np.ndarray, "M 2"]
    bucket_ids: UInt16[np.ndarray, " M"]
    stats: tuple[BucketStats, ...]
    rows: Int[np.ndarray, " N"] | None = None

    @property
    def padding_fraction(self) -> float:
        """Fraction of the epoch's positions, both sides together and filler rows included, that hold no token."""
        return 1 - sum(each.tokens for each in self.stats) / sum(each.positions for each in self.stats)

    def __len__(self) -> int:
        return len(self.slices)

    def __getitem__(self, number: int) -> PlannedBatch:
        start, stop = self.slices[number]
        packed = self.rows is not None
        rows = self.rows[start:stop] if packed else np.arange(stop - start)
        return PlannedBatch(self.stats[self.bucket_ids[number]].bucket, self.sentences[start:stop], rows, packed)
