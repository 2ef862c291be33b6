"""The ladder of padded shapes: "sentence pairs were batched together by approximate sequence length" (section 5.1).

Every shape is compiled once, so there are few. They form a chain: each bucket is at least as long as the one below on
both sides. A pair goes to the first bucket that holds it, so its bucket is the higher of its two sides' levels, and
what remains of a bucket's pairs after its full batches fits every bucket above. (Shapes free of that order were tried:
they saved 0.1 % of the positions on Multi30k.)
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, UInt16

from transformer.config_types import Config
from transformer.data.batches import bucket_search
from transformer.data.batches.bucket_search import BucketLengths
from transformer.errors import UserError

CHUNK = 1 << 20  # pairs looked at together: bounds the temporary arrays of a pass over the lengths
OVERHEAD = 0.05  # what a batch costs beside its positions, in full batches: keeps a small corpus from many small ones


@dataclasses.dataclass(frozen=True)
class Bucket:
    """One padded shape: source (rows, source_length), target (rows, target_length)."""

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


def choose_buckets(
    lengths: Int[np.ndarray, "N 2"],
    batch: Config,
    longest: BucketLengths | None = None,
) -> tuple[Bucket, ...]:
    """The ladder of at most `batch.max_buckets` shapes that pads an epoch least, filler rows counted.

    A function of the lengths' histogram alone. Rows are as many as `batch.tokens` allows, or fewer where as many
    batches still hold the bucket's pairs.

    Args:
      lengths: pieces of source and target, end-of-sentence included.
      batch: `config.batch`.
      longest: source and target length that the largest bucket has to hold; None: the longest of `lengths`.

    Raises:
      UserError: `batch.tokens` cannot hold `batch.row_multiple` rows of the longest sentence; or no pair is given.
    """
    if len(lengths) == 0:
        raise UserError("data: no sentence pair is left; the log counts what was dropped, and why")
    top = tuple(int(length) for length in lengths.max(axis=0))
    if longest is not None:
        top = (max(top[0], longest[0]), max(top[1], longest[1]))
    multiple = batch.row_multiple
    if multiple * max(top) > batch.tokens:
        raise UserError(
            f"batch.tokens={batch.tokens}: the longest sentence has {max(top)} pieces and a batch has at least "
            f"batch.row_multiple={multiple} rows; raise batch.tokens to {multiple * max(top)} or more, "
            f"or lower data.max_length to {batch.tokens // multiple}"
        )
    table = bucket_search.LengthTable(lengths, top, CHUNK)
    overhead = OVERHEAD * 2 * batch.tokens

    def ladder(chain: Sequence[BucketLengths]) -> tuple[list[int], list[int], list[int]]:
        """Pairs of each bucket of a chain, the most rows that it can have, and the positions of a row."""
        sizes = [table.lengths_at(anchor) for anchor in chain]
        counts = [high - low for low, high in itertools.pairwise([0, *map(table.within, chain)])]
        return (
            counts,
            [batch.tokens // max(size) // multiple * multiple for size in sizes],
            [sum(size) for size in sizes],
        )

    def epoch_cost(chain: Sequence[BucketLengths]) -> float:
        return _cheapest(*ladder(chain), [multiple] * len(chain), overhead)[0]

    chain = bucket_search.best_chain(table, batch.max_buckets, epoch_cost)
    counts, rows, widths = ladder(chain)
    _, closed = _cheapest(counts, rows, widths, [multiple] * len(chain), overhead)
    buckets, moved = [], 0
    for level, anchor in enumerate(chain):
        total = counts[level] + moved
        full, moved = divmod(total, rows[level])
        if closed[level] and total:
            rows[level], moved = _rows_for(total, rows[level], multiple), 0
        if level == len(chain) - 1 or full or closed[level] and total:
            buckets.append(Bucket(rows[level], *table.lengths_at(anchor)))
    return tuple(buckets)


def assign(lengths: Int[np.ndarray, "N 2"], buckets: Sequence[Bucket]) -> UInt16[np.ndarray, " N"]:
    """The number of each pair's bucket; `len(buckets)` where none holds it."""
    source_ladder = np.array([bucket.source_length for bucket in buckets])
    target_ladder = np.array([bucket.target_length for bucket in buckets])
    assigned = np.empty(len(lengths), np.uint16)
    for start in range(0, len(lengths), CHUNK):
        part = np.asarray(lengths[start : start + CHUNK])
        source_level = np.searchsorted(source_ladder, part[:, 0])
        target_level = np.searchsorted(target_ladder, part[:, 1])
        assigned[start : start + CHUNK] = np.maximum(source_level, target_level)
    return assigned


def close(counts: Sequence[int], buckets: Sequence[Bucket]) -> list[bool]:
    """Which buckets make a part-empty batch of their remainder, so that an epoch has the fewest positions.

    The remainder of the others moves up and joins the next bucket's pairs. `counts`: pairs of each bucket.
    """
    rows = [bucket.rows for bucket in buckets]
    return _cheapest(counts, rows, [bucket.width for bucket in buckets], rows, 0.0)[1]


def _cheapest(
    counts: Sequence[int], rows: Sequence[int], widths: Sequence[int], multiples: Sequence[int], overhead: float
) -> tuple[float, list[bool]]:
    """The least cost of an epoch, in positions, and which buckets are closed for it: nothing moves up from them.

    A shortest path from closed bucket to closed bucket. The rows of a closed one may be cut in steps of `multiples`.
    """
    best = [0.0] + [math.inf] * len(counts)  # best[k]: all buckets below k are done and nothing moves up into k
    came_from = [0] * len(best)
    for first in range(len(counts)):
        cost, moved = best[first], 0
        for last in range(first, len(counts)):
            total, most = counts[last] + moved, rows[last]
            needed = _rows_for(total, most, multiples[last]) if total else 0
            closed = cost + -(-total // most) * (needed * widths[last] + overhead)
            if closed < best[last + 1]:
                best[last + 1], came_from[last + 1] = closed, first
            full, moved = divmod(total, most)
            cost += full * (most * widths[last] + overhead)
    closed, level = [False] * len(counts), len(counts)
    while level:
        closed[level - 1] = True
        level = came_from[level]
    return best[-1], closed


def _rows_for(total: int, most: int, multiple: int) -> int:
    """The fewest rows, in steps of `multiple`, with which `total` pairs need no more batches than with `most` rows."""
    batches = -(-total // most)
    return -(-total // (batches * multiple)) * multiple
