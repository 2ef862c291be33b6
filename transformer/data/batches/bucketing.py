"""The batch plan: which sentences share a batch (section 5.1).

A plan holds indices only and is a pure function of (lengths, buckets, seed, epoch). So a batch is a pure function of
its epoch and number: a run resumes by two integers, and a batch does not depend on the devices or hosts that share it.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, UInt16

from transformer.data.batches.buckets import Bucket, assign, close
from transformer.errors import UserError


@dataclasses.dataclass(frozen=True)
class Batch:
    """The sentences of a batch, and the row each stands in. Those of one row follow each other, side by side."""

    bucket: Bucket
    sentences: Int[np.ndarray, " N"]
    rows: Int[np.ndarray, " N"]


@dataclasses.dataclass(frozen=True)
class BucketStats:
    """What an epoch puts in a bucket. `pieces` are of both sides, end-of-sentence included."""

    bucket: Bucket
    batches: int
    sentences: int
    pieces: int

    @property
    def positions(self) -> int:
        """Positions of both sides, filler rows included."""
        return self.batches * self.bucket.positions


@dataclasses.dataclass(frozen=True)
class EpochPlan:
    """The batches of an epoch, in order: `len(plan)` of them, `plan[i]` the i-th.

    Attributes:
      sentences: every sentence once, so that each batch is a slice.
      slices: start and stop of each batch in `sentences`.
      levels: the number of each batch's bucket.
      uses: each bucket, shortest first, and what is in it.
    """

    sentences: Int[np.ndarray, " N"]
    slices: Int[np.ndarray, "M 2"]
    levels: UInt16[np.ndarray, " M"]
    uses: tuple[BucketStats, ...]

    @property
    def padding_fraction(self) -> float:
        return padding_fraction(self.uses)

    def __len__(self) -> int:
        return len(self.slices)

    def __getitem__(self, number: int) -> Batch:
        start, stop = self.slices[number]
        return Batch(self.uses[self.levels[number]].bucket, self.sentences[start:stop], np.arange(stop - start))


def padding_fraction(uses: Sequence[BucketStats]) -> float:
    """Share of an epoch's positions, both sides together and filler rows included, that hold no piece."""
    return 1 - sum(use.pieces for use in uses) / sum(use.positions for use in uses)


def plan_epoch(lengths: Int[np.ndarray, "N 2"], buckets: Sequence[Bucket], seed: int, epoch: int) -> EpochPlan:
    """Batches of an epoch of training: random sentences of similar length together, in random order.

    Args:
      lengths: pieces of source and target, end-of-sentence included.
      buckets: from `buckets.choose_buckets`.

    Raises:
      UserError: a sentence is longer than the largest bucket.
    """
    return _plan(lengths, buckets, np.random.default_rng([seed, epoch]))


def plan_in_order(lengths: Int[np.ndarray, "N 2"], buckets: Sequence[Bucket]) -> EpochPlan:
    """The same without chance, for validation: sentences and buckets in their own order."""
    return _plan(lengths, buckets, None)


def _plan(lengths: Int[np.ndarray, "N 2"], buckets: Sequence[Bucket], random: np.random.Generator | None) -> EpochPlan:
    assigned = assign(lengths, buckets)
    counts = np.bincount(assigned, minlength=len(buckets)).tolist()
    if len(counts) > len(buckets):
        raise UserError(
            f"data: {counts[-1]} sentence pairs are longer than the largest bucket, {buckets[-1].source_length} "
            f"source and {buckets[-1].target_length} target pieces; lower data.max_length"
        )
    closed = close(counts, buckets)
    remainder, placed = np.empty(0, np.int32), 0
    sentences, slices, levels, uses = [], [], [], []
    for level, bucket in enumerate(buckets):
        members = np.concatenate([remainder, np.flatnonzero(assigned == level).astype(np.int32)])
        if random is not None:
            random.shuffle(members)
        stop = len(members) if closed[level] else len(members) // bucket.rows * bucket.rows
        members, remainder = members[:stop], members[stop:]
        starts = np.arange(0, stop, bucket.rows)
        slices.append(placed + np.stack([starts, np.minimum(starts + bucket.rows, stop)], axis=1))
        placed += stop
        sentences.append(members)
        levels.append(np.full(len(starts), level, np.uint16))
        uses.append(BucketStats(bucket, len(starts), stop, int(lengths[members].sum(dtype=np.int64))))
    slices, levels = np.concatenate(slices), np.concatenate(levels)
    if random is not None:
        order = random.permutation(len(slices))
        slices, levels = slices[order], levels[order]
    return EpochPlan(np.concatenate(sentences), slices, levels, tuple(uses))
