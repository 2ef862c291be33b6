"""The packed plan: several sentences in a row, and one shape for the whole run.

Segment numbers distinguish the sentences of a row. Attention stays within a segment, so a sentence
contributes the same as in a row without others.
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, UInt

from transformer.config.types import Config
from transformer.data.batches.epoch_plan import Bucket, BucketStats, EpochPlan, Lengths

CHUNK = 8192  # sentences packed together; those that fit no row are packed with the next chunk


def choose_shapes(lengths: Lengths, batch_config: Config) -> tuple[Bucket, ...]:
    """Returns the only shape: rows of `packed_length` positions, at most `tokens` on each side."""
    length = batch_config.packed_length
    multiple = batch_config.row_multiple
    rows = batch_config.tokens // length // multiple * multiple
    source, target = (length if side.any() else 0 for side in lengths.T)
    return (Bucket(rows, source, target, is_packed=True),)


def plan_epoch(
    lengths: Lengths, buckets: Sequence[Bucket], random: np.random.Generator
) -> EpochPlan:
    """Plans an epoch of training: rows of random sentences, in random order.

    No sentence may be longer than a row.
    """
    (bucket,) = buckets
    capacity = max(bucket.source_length, bucket.target_length)
    sentences, counts = _fill_rows(lengths, capacity, random)

    # The next `bucket.rows` rows are a batch, and `counts` has the sentences of each row.
    first_rows = np.arange(0, len(counts), bucket.rows)  # (batches,)
    stops = np.cumsum(np.add.reduceat(counts, first_rows))
    starts = np.append(0, stops[:-1])
    slices = np.stack([starts, stops], axis=1)  # (batches, 2)
    row_numbers = (np.arange(len(counts)) % bucket.rows).astype(np.int32)  # in the batch
    rows = np.repeat(row_numbers, counts)  # (sentences,)
    stats = BucketStats(bucket, len(slices), int(lengths.sum(dtype=np.int64)))

    # The last rows have the sentences that did not fit before, so batches are shuffled.
    order = random.permutation(len(slices))
    return EpochPlan(sentences, slices[order], np.zeros(len(slices), np.uint16), (stats,), rows)


def _fill_rows(
    lengths: Lengths, capacity: int, random: np.random.Generator
) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " R"]]:
    """Returns random sentences row by row, and the number of sentences in each row."""
    sentences = []
    counts = []
    waiting = np.empty(0, np.int32)
    unseen = random.permutation(np.arange(len(lengths), dtype=np.int32))
    while len(waiting) or len(unseen):
        # Pack the next chunk, with the sentences that fit no row of the last one.
        if len(waiting) < CHUNK:
            waiting = np.concatenate([waiting, unseen[:CHUNK]])
            unseen = unseen[CHUNK:]
        row_of, num_rows = _pack(np.take(lengths, waiting, axis=0), capacity)

        # `_pack` fills the rows in the order of length, so the rows of a chunk are shuffled.
        order = random.permutation(num_rows).astype(row_of.dtype)  # the new number of each row

        placed = np.flatnonzero(row_of < num_rows)
        new_rows = order[row_of[placed]]
        by_row = placed[np.argsort(new_rows, kind="stable")]
        sentences.append(waiting[by_row])
        counts.append(np.bincount(new_rows))
        waiting = waiting[row_of == num_rows]
    return np.concatenate(sentences), np.concatenate(counts)


def _pack(lengths: Lengths, capacity: int) -> tuple[UInt[np.ndarray, " N"], int]:
    """Packs sentences into R rows, as few as the sum of lengths allows.

    Returns the row of each sentence, and R. The row is R for a sentence that fits no row.

    The method is first-fit decreasing, a block at a time. A block has the longest sentences without
    a row, one for each row, and takes the rows with the most free positions. Both are sorted by
    source minus target, in length and in free positions, so that a sentence with a long source
    meets a row that can hold it, and both sides fill together.
    """
    # NumPy sorts integers of 16 bits ten times as fast as larger integers.
    dtype = np.int16 if 2 * capacity < 1 << 15 else np.int32
    sides = np.ascontiguousarray(lengths.T, dtype)  # (2, N)

    longer_side = int(lengths.sum(axis=0, dtype=np.int64).max())
    num_rows = math.ceil(longer_side / capacity)
    free = np.full((2, num_rows), capacity, dtype)
    row_of = np.full(len(lengths), num_rows, np.min_scalar_type(num_rows))
    remaining = np.argsort(-sides.sum(axis=0, dtype=dtype), kind="stable")
    is_progress = True
    while is_progress:
        for start in range(0, len(remaining), num_rows):
            block = remaining[start : start + num_rows]

            # A block that is not full takes the rows with the most free positions.
            rows = np.arange(num_rows)
            if len(block) < num_rows:
                rows = np.argsort(-np.minimum(*free), kind="stable")[: len(block)]
            block = _sort_by_difference(block, sides)
            rows = _sort_by_difference(rows, free)

            # Sentences that do not fit their rows wait for the next pass.
            fits_side = np.take(sides, block, axis=1) <= np.take(free, rows, axis=1)
            fits = np.logical_and(*fits_side)

            block = block[fits]
            rows = rows[fits]
            row_of[block] = rows
            free[:, rows] -= np.take(sides, block, axis=1)

        num_before = len(remaining)
        remaining = remaining[row_of[remaining] == num_rows]
        is_progress = len(remaining) < num_before
    return row_of, num_rows


def _sort_by_difference(
    indices: Int[np.ndarray, " M"], sides: Int[np.ndarray, "2 N"]
) -> Int[np.ndarray, " M"]:
    """Sorts indices of `sides` by source minus target."""
    source, target = np.take(sides, indices, axis=1)
    return indices[np.argsort(source - target, kind="stable")]
