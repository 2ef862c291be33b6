"""The packed plan: several sentences a row and one shape for the whole run, which compiles once.

Segment numbers distinguish the sentences of a row. Attention stays within a segment, so a sentence contributes the same
as in a row to itself.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int

from transformer.config_types import Config
from transformer.data.batches.collation import ragged_arange
from transformer.data.batches.epoch_plan import Bucket, BucketStats, EpochPlan
from transformer.data.corpus.corpus import Corpus

CHUNK = 8192  # sentences packed together; those that fit no row are packed with the next chunk


def choose_shapes(corpus: Corpus, config: Config) -> tuple[Bucket, ...]:
    """Returns the one shape: as many rows of `batch.packed_length` positions as `batch.tokens` holds on either side."""
    batch = config.batch
    rows = batch.tokens // batch.packed_length // batch.row_multiple * batch.row_multiple
    lengths = (batch.packed_length if side.any() else 0 for side in corpus.lengths.T)
    return (Bucket(rows, *lengths),)


def plan_epoch(lengths: Int[np.ndarray, "N 2"], buckets: Sequence[Bucket], random: np.random.Generator) -> EpochPlan:
    """Plans an epoch of training: rows of random sentences, in random order.

    Args:
      lengths: tokens of source and target, end-of-sentence included; every sentence fits a row.
      buckets: the one shape, from `choose_shapes`.
    """
    (bucket,) = buckets
    shuffled = random.permutation(np.arange(len(lengths), dtype=np.int32))
    capacity = max(bucket.source_length, bucket.target_length)
    sentences, counts = map(np.concatenate, zip(*_fill_rows(lengths, shuffled, capacity), strict=True))
    order = random.permutation(len(counts))
    starts = (np.cumsum(counts) - counts)[order]
    counts = counts[order]
    sentences = sentences[np.repeat(starts, counts) + ragged_arange(counts)]
    rows = np.repeat((np.arange(len(order)) % bucket.rows).astype(np.int32), counts)
    stops = np.append(np.cumsum(counts)[bucket.rows - 1 :: bucket.rows], len(sentences))
    stops = np.unique(stops)  # the last batch may be full
    slices = np.stack([np.append(0, stops[:-1]), stops], axis=1)
    tokens = np.add.reduceat(np.take(lengths, sentences, axis=0), slices[:, 0], dtype=np.int64)
    stats = BucketStats(bucket, len(slices), len(sentences), int(tokens.sum()))
    return EpochPlan(sentences, slices, np.zeros(len(slices), np.uint16), tokens, (stats,), rows)


def _fill_rows(
    lengths: Int[np.ndarray, "N 2"], sentences: Int[np.ndarray, " N"], capacity: int
) -> Iterator[tuple[Int[np.ndarray, " M"], Int[np.ndarray, " R"]]]:
    """Yields, a chunk at a time, the sentences row after row and the number of sentences in each row."""
    waiting, unseen = sentences[:0], sentences
    while len(waiting) or len(unseen):
        if len(waiting) < CHUNK:
            waiting, unseen = np.concatenate([waiting, unseen[:CHUNK]]), unseen[CHUNK:]
        rows = _pack(np.asarray(lengths[waiting], np.int64), capacity)
        by_row = np.argsort(rows, kind="stable")[np.count_nonzero(rows < 0) :]
        yield waiting[by_row], np.bincount(rows[by_row])
        waiting = waiting[rows < 0]


def _pack(lengths: Int[np.ndarray, "N 2"], capacity: int) -> Int[np.ndarray, " N"]:
    """Returns the row of each sentence, or -1 if it fits none; there are as few rows as the sum of lengths allows.

    First-fit decreasing, a block at a time: a block holds the longest sentences that are left, one for each row, and
    takes the rows with the most room. Both are sorted by source minus target, in length and in room, so that a sentence
    with a long source meets a row with room for it, and both sides fill together.
    """
    num_rows = -(-int(lengths.sum(axis=0).max()) // capacity)
    room = np.full((num_rows, 2), capacity)
    row_of = np.full(len(lengths), -1)
    left = np.argsort(-lengths.sum(axis=1), kind="stable")
    placed = True
    while placed:
        for start in range(0, len(left), num_rows):
            block = left[start : start + num_rows]
            roomiest = np.argsort(-room.min(axis=1), kind="stable")[: len(block)]
            block, rows = _by_difference(block, lengths), _by_difference(roomiest, room)
            fits = (lengths[block] <= room[rows]).all(axis=1)
            row_of[block[fits]] = rows[fits]
            room[rows[fits]] -= lengths[block[fits]]
        still_left = left[row_of[left] < 0]
        placed, left = len(still_left) < len(left), still_left
    return row_of


def _by_difference(indices: Int[np.ndarray, " M"], sides: Int[np.ndarray, "N 2"]) -> Int[np.ndarray, " M"]:
    """Sorts indices of `sides` by source minus target."""
    return indices[np.argsort(sides[indices, 0] - sides[indices, 1], kind="stable")]
