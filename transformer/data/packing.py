"""The packed plan: several sentences a row, one shape for the whole run, for accelerators that like one shape.

Sentences of a row are told apart by segment numbers; attention stays within a segment, so what a sentence contributes is the same as
in a row of its own.
"""

import dataclasses
from collections.abc import Sequence

import ml_collections
import numpy as np
from jaxtyping import Int

from transformer.data.batching import Batch, BucketUse, bucket_use, count_up
from transformer.data.buckets import Bucket
from transformer.errors import UserError

CHUNK = 8192  # sentences packed together; those that find no place go on to the next chunk


@dataclasses.dataclass(frozen=True)
class PackedPlan:
    """The batches of an epoch, in order: `len(plan)` of them, `plan[i]` the i-th.

    Attributes:
      buckets: the one shape.
      sentences: every sentence once, row after row.
      starts: where each row starts in `sentences`, and where the last one stops.
      order: the rows in the order in which batches take them.
      uses: what the shape does.
    """

    buckets: tuple[Bucket]
    sentences: Int[np.ndarray, " N"]
    starts: Int[np.ndarray, " R1"]
    order: Int[np.ndarray, " R"]
    uses: tuple[BucketUse]

    @property
    def padding_fraction(self) -> float:
        """Positions without a piece, filler rows included, over all positions of both sides."""
        return self.uses[0].padding_fraction

    def __len__(self) -> int:
        return -(-len(self.order) // self.buckets[0].rows)

    def __getitem__(self, number: int) -> Batch:
        (bucket,) = self.buckets
        rows = self.order[number * bucket.rows : (number + 1) * bucket.rows]
        counts = self.starts[rows + 1] - self.starts[rows]
        sentences = self.sentences[np.repeat(self.starts[rows], counts) + count_up(counts)]
        return Batch(bucket, sentences, np.repeat(np.arange(len(rows)), counts))


def row_shape(batch: ml_collections.ConfigDict | ml_collections.FrozenConfigDict) -> Bucket:
    """The one shape: rows of `batch.packed_length` positions on either side, as many as `batch.tokens` holds.

    Raises:
      UserError: `batch.tokens` cannot hold `batch.row_multiple` rows.
    """
    length = batch.packed_length
    rows = batch.tokens // length // batch.row_multiple * batch.row_multiple
    if rows == 0:
        raise UserError(
            f"batch.tokens={batch.tokens}: a batch has at least batch.row_multiple={batch.row_multiple} rows of "
            f"batch.packed_length={length}; raise batch.tokens to {batch.row_multiple * length} or more, "
            f"or lower batch.packed_length"
        )
    return Bucket(rows, length, length)


def plan_epoch(lengths: Int[np.ndarray, "N 2"], buckets: Sequence[Bucket], seed: int, epoch: int) -> PackedPlan:
    """Rows of random sentences, in random order; `batching.plan_epoch` for packed rows.

    Args:
      lengths: pieces of source and target, end-of-sentence included.
      buckets: the one shape, from `row_shape`.

    Raises:
      UserError: a sentence does not fit a row.
    """
    (bucket,) = buckets
    capacity = bucket.source_length
    if len(lengths) and int(lengths.max()) > capacity:
        raise UserError(
            f"batch.packed_length={capacity}: the longest sentence has {lengths.max()} pieces; raise batch.packed_length, "
            f"or lower data.max_length to it"
        )
    random = np.random.default_rng([seed, epoch])
    shuffled = random.permutation(np.arange(len(lengths), dtype=np.int32))
    sentences, sizes = [], []
    unplaced = shuffled[:0]
    for start in [*range(0, len(shuffled), CHUNK), len(shuffled)]:
        items = np.concatenate([unplaced, shuffled[start : start + CHUNK]])
        while len(items) >= CHUNK or (start == len(shuffled) and len(items)):
            rows = _pack(np.asarray(lengths[items], np.int64), capacity)
            by_row = np.argsort(rows, kind="stable")
            placed = by_row[np.searchsorted(rows[by_row], 0) :]
            sentences.append(items[placed])
            sizes.append(np.bincount(rows[placed]))
            items = items[rows < 0]
        unplaced = items
    sizes = np.concatenate(sizes)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    order = random.permutation(len(sizes))
    batches = -(-len(order) // bucket.rows)
    return PackedPlan((bucket,), np.concatenate(sentences), starts, order, (bucket_use(bucket, batches, lengths, shuffled),))


def _pack(lengths: Int[np.ndarray, "N 2"], capacity: int) -> Int[np.ndarray, " N"]:
    """Places sentences into as few rows as their sum allows; returns each one's row, -1 where it found no place.

    First-fit decreasing in blocks: the longest sentences first, one for each row at a time. Within a block they are matched so that
    source and target fill up together: the sentence with the most source over target goes to the row with the most room left so.
    """
    rows = -(-int(lengths.sum(axis=0).max()) // capacity)
    room = np.full((rows, 2), capacity)
    placed_in = np.full(len(lengths), -1)
    waiting = np.argsort(-lengths.sum(axis=1), kind="stable")
    while True:
        for start in range(0, len(waiting), rows):
            block = waiting[start : start + rows]
            block = block[np.argsort(lengths[block, 0] - lengths[block, 1], kind="stable")]
            roomiest = np.argsort(-room.min(axis=1), kind="stable")[: len(block)]
            offered = roomiest[np.argsort(room[roomiest, 0] - room[roomiest, 1], kind="stable")]
            fits = (lengths[block] <= room[offered]).all(axis=1)
            placed_in[block[fits]] = offered[fits]
            room[offered[fits]] -= lengths[block[fits]]
        left = waiting[placed_in[waiting] < 0]
        if len(left) in (0, len(waiting)):
            return placed_in
        waiting = left
