"""The batches of an epoch, as indices of sentences.

A plan is a pure function of (lengths, buckets, seed, epoch), so a batch is a pure function of its
epoch and its number. A run therefore resumes from two integers, and the batches do not depend on
the devices or hosts that share them.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int, UInt16

# The number of tokens of the source and the target of N pairs, end-of-sentence included; 0 for a
# side that monolingual pairs do not have.
Lengths = Int[np.ndarray, "N 2"]


@dataclasses.dataclass(frozen=True)
class Bucket:
    """The padded shape of a batch: source (rows, source_length), target (rows, target_length).

    A length of 0 means that the batch does not have this side.
    """

    rows: int
    source_length: int
    target_length: int
    candidates: int = 1  # consecutive rows with the same source
    is_packed: bool = False  # True: a row may have several sentences

    def __str__(self) -> str:
        sides = {"source": self.source_length, "target": self.target_length}
        lengths = ", ".join(f"{length} {side}" for side, length in sides.items() if length)
        return f"{self.rows} rows x {lengths}"

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
    """The sentences of a batch and the row of each sentence, in ascending order."""

    bucket: Bucket
    sentences: Int[np.ndarray, " N"]
    rows: Int[np.ndarray, " N"]


@dataclasses.dataclass(frozen=True)
class BucketStats:
    """The contents of a bucket in an epoch.

    With subword sampling, `tokens` counts the positions that the plan reserves for tokens.
    """

    bucket: Bucket
    batches: int
    tokens: int  # of both sides, end-of-sentence included

    @property
    def positions(self) -> int:
        """Positions of both sides, filler rows included."""
        return self.batches * self.bucket.positions

    @property
    def padding_fraction(self) -> float:
        """Fraction of the positions without a token; 0 if there are no batches."""
        return 1 - self.tokens / self.positions if self.positions else 0.0


@dataclasses.dataclass(frozen=True)
class EpochPlan:
    """The batches of an epoch, a sequence of `PlannedBatch`."""

    sentences: Int[np.ndarray, " N"]  # each sentence once, in the order of the slices
    slices: Int[np.ndarray, "M 2"]  # start and stop of each batch in `sentences`
    bucket_ids: UInt16[np.ndarray, " M"]  # the bucket of each batch
    stats: tuple[BucketStats, ...]  # the contents of each bucket, shortest first
    # The row of each sentence in its batch, for packed batches; None: one sentence in a row.
    rows: Int[np.ndarray, " N"] | None = None

    @property
    def padding_fraction(self) -> float:
        """Fraction of the epoch's positions without a token, filler rows included."""
        tokens = sum(stats.tokens for stats in self.stats)
        positions = sum(stats.positions for stats in self.stats)
        return 1 - tokens / positions

    def __len__(self) -> int:
        return len(self.slices)

    def __iter__(self) -> Iterator[PlannedBatch]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, number: int) -> PlannedBatch:
        start, stop = self.slices[number]
        bucket = self.stats[self.bucket_ids[number]].bucket
        sentences = self.sentences[start:stop]
        rows = np.arange(stop - start) if self.rows is None else self.rows[start:stop]
        return PlannedBatch(bucket, sentences, rows)
