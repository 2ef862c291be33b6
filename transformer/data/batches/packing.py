"""The packed plan: several sentences a row and one shape for the whole run, which compiles once.

Segment numbers distinguish the sentences of a row. Attention stays within a segment, so a sentence
contributes the same as in a row to itself.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int, UInt

from transformer.config.types import Config
from transformer.data.batches.epoch_plan import Bucket, BucketStats, EpochPlan

CHUNK = 8192  # sentences packed together; those that fit no row are packed with the next chunk


def choose_shapes(lengths: Int[np.ndarray, "N 2"], batch: Config) -> tuple[Bucket, ...]:
    """Returns the one shape: as many rows of `batch.packed_length` positions as `batch.tokens`
    holds on either side.
    """
    rows = batch.tokens // batch.packed_length // batch.row_multiple * batch.row_multiple
    return (Bucket(rows, *(batch.packed_length if side.any() else 0 for side in lengths.T)),)


def plan_epoch(
    lengths: Int[np.ndarray, "N 2"], buckets: Sequence[Bucket], random: np.random.Generator
) -> EpochPlan:
    """Plans an epoch of training: rows of random sentences, in random order.

    Every sentence fits a row.
    """
    (bucket,) = buckets
    capacity = max(bucket.source_length, bucket.target_length)
    sentences, counts = map(
        np.concatenate, zip(*_fill_rows(lengths, capacity, random), strict=True)
    )
    first_rows = np.arange(0, len(counts), bucket.rows)
    stops = np.cumsum(np.add.reduceat(counts, first_rows))
    slices = np.stack([np.append(0, stops[:-1]), stops], axis=1)
    rows = np.repeat((np.arange(len(counts)) % bucket.rows).astype(np.int32), counts)
    stats = BucketStats(bucket, len(slices), int(lengths.sum(dtype=np.int64)))
    order = random.permutation(len(slices))  # the rows filled last hold what did not fit before
    return EpochPlan(sentences, slices[order], np.zeros(len(slices), np.uint16), (stats,), rows)


def _fill_rows(
    lengths: Int[np.ndarray, "N 2"], capacity: int, random: np.random.Generator
) -> Iterator[tuple[Int[np.ndarray, " M"], Int[np.ndarray, " R"]]]:
    """Yields the R rows of a chunk of random sentences: the sentences row by row, and their count
    in each.
    """
    waiting = np.empty(0, np.int32)
    unseen = random.permutation(np.arange(len(lengths), dtype=np.int32))
    while len(waiting) or len(unseen):
        if len(waiting) < CHUNK:
            waiting = np.concatenate([waiting, unseen[:CHUNK]])
            unseen = unseen[CHUNK:]
        row_of, num_rows = _pack(np.take(lengths, waiting, axis=0), capacity)
        order = random.permutation(num_rows).astype(row_of.dtype)  # the new number of each row
        placed = np.flatnonzero(row_of < num_rows)
        new_rows = order[row_of[placed]]
        by_row = placed[np.argsort(new_rows, kind="stable")]
        yield waiting[by_row], np.bincount(new_rows)
        waiting = waiting[row_of == num_rows]


def _pack(lengths: Int[np.ndarray, "N 2"], capacity: int) -> tuple[UInt[np.ndarray, " N"], int]:
    """Packs sentences into R rows, as few as the sum of lengths allows.

    First-fit decreasing, a block at a time: a block holds the longest sentences that are left, one
    for each row, and takes the rows with the most free positions. Both are sorted by source minus
    target, in length and in free positions, so that a sentence with a long source meets a row that
    can hold it, and both sides fill together. Returns the row of each sentence, or R if it fits
    none, and R.
    """
    # NumPy sorts integers of 16 bits ten times as fast as larger ones.
    sides = np.ascontiguousarray(lengths.T, np.int16 if 2 * capacity < 1 << 15 else np.int32)
    num_rows = -(-int(lengths.sum(axis=0, dtype=np.int64).max()) // capacity)
    free = np.full((2, num_rows), capacity, sides.dtype)
    row_of = np.full(len(lengths), num_rows, np.min_scalar_type(num_rows))
    left = np.argsort(-sides.sum(axis=0, dtype=sides.dtype), kind="stable")
    placed = True
    while placed:
        for start in range(0, len(left), num_rows):
            block = left[start : start + num_rows]
            rows = np.arange(num_rows)
            if len(block) < num_rows:
                rows = np.argsort(-np.minimum(*free), kind="stable")[: len(block)]
            block = _by_difference(block, sides)
            rows = _by_difference(rows, free)
            fits = np.logical_and(*(np.take(sides, block, axis=1) <= np.take(free, rows, axis=1)))
            block = block[fits]
            rows = rows[fits]
            row_of[block] = rows
            free[:, rows] -= np.take(sides, block, axis=1)
        still_left = left[row_of[left] == num_rows]
        placed = len(still_left) < len(left)
        left = still_left
    return row_of, num_rows


def _by_difference(
    indices: Int[np.ndarray, " M"], sides: Int[np.ndarray, "2 N"]
) -> Int[np.ndarray, " M"]:
    """Sorts indices of `sides` by source minus target."""
    source, target = np.take(sides, indices, axis=1)
    return indices[np.argsort(source - target, kind="stable")]
