"""The packed plan: several sentences a row, one shape for the whole run, for accelerators that like one shape.

Segment numbers tell the sentences of a row apart; attention stays within a segment, so that a sentence contributes
what it would in a row of its own.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from transformer.config_types import Config
from transformer.data.batches.bucketing import Batch, BucketStats, padding_fraction
from transformer.data.batches.buckets import Bucket
from transformer.data.batches.collation import ragged_arange
from transformer.errors import UserError

CHUNK = 8192  # sentences packed together; those that find no place go on to the next chunk


@dataclasses.dataclass(frozen=True)
class PackedPlan:
    """The batches of an epoch, in order: `len(plan)` of them, `plan[i]` the i-th.

    Attributes:
      sentences: every sentence once, row after row.
      starts: where each row starts in `sentences`, and where the last one stops.
      order: the rows, in the order in which batches take them.
      uses: the one shape, and what is in it.
    """

    sentences: Int[np.ndarray, " N"]
    starts: Int[np.ndarray, " _"]
    order: Int[np.ndarray, " R"]
    uses: tuple[BucketStats]

    @property
    def padding_fraction(self) -> float:
        return padding_fraction(self.uses)

    def __len__(self) -> int:
        return self.uses[0].batches

    def __getitem__(self, number: int) -> Batch:
        bucket = self.uses[0].bucket
        rows = self.order[number * bucket.rows : (number + 1) * bucket.rows]
        counts = self.starts[rows + 1] - self.starts[rows]
        sentences = self.sentences[np.repeat(self.starts[rows], counts) + ragged_arange(counts)]
        return Batch(bucket, sentences, np.repeat(np.arange(len(rows)), counts))


def row_shape(batch: Config) -> Bucket:
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
      UserError: no pair is given, or one does not fit a row.
    """
    (bucket,) = buckets
    if len(lengths) == 0:
        raise UserError("data: no sentence pair is left; the log counts what was dropped, and why")
    if (longest := int(lengths.max())) > bucket.source_length:
        raise UserError(
            f"batch.packed_length={bucket.source_length}: the longest sentence has {longest} pieces; raise it to "
            f"{longest} or more, or lower data.max_length"
        )
    random = np.random.default_rng([seed, epoch])
    shuffled = random.permutation(np.arange(len(lengths), dtype=np.int32))
    sentences, sizes, pieces, waiting = [], [], 0, shuffled[:0]
    for start in range(0, len(shuffled), CHUNK):
        waiting = np.concatenate([waiting, shuffled[start : start + CHUNK]])
        last = start + CHUNK >= len(shuffled)
        while len(waiting) >= CHUNK or (last and len(waiting)):
            waiting_lengths = np.asarray(lengths[waiting], np.int64)
            rows = _pack(waiting_lengths, bucket.source_length)
            placed = np.argsort(rows, kind="stable")[np.count_nonzero(rows < 0) :]
            sentences.append(waiting[placed])
            sizes.append(np.bincount(rows[placed]))
            pieces += int(waiting_lengths[placed].sum())
            waiting = waiting[rows < 0]
    starts = np.cumsum(np.concatenate([[0], *sizes]))
    order = random.permutation(len(starts) - 1)
    use = BucketStats(bucket, -(-len(order) // bucket.rows), len(shuffled), pieces)
    return PackedPlan(np.concatenate(sentences), starts, order, (use,))


def _pack(lengths: Int[np.ndarray, "N 2"], capacity: int) -> Int[np.ndarray, " N"]:
    """The row of each sentence, -1 where it found no place in as few rows as the sum of lengths allows.

    First-fit decreasing, a block at a time: the longest sentences first, one for each row. In a block, sentences and
    rows are matched by what source has over target, in length and in room, so that both sides fill up together.
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
