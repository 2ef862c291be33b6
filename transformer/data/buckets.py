"""The ladder of padded shapes: "sentence pairs were batched together by approximate sequence length" (section 5.1).

Every shape is compiled once, so there are few of them. They form a chain: each bucket holds at least the lengths of the one
below on both sides. A pair goes to the first bucket that holds it, so its bucket is the higher of its two sides' levels, and what
is left of a bucket's pairs after its last full batch fits every bucket above. (Shapes free of that order would save well under
1 % of the padding.)
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import ml_collections
import numpy as np
from jaxtyping import Int, UInt8

from transformer.errors import UserError

CHUNK = 1 << 20  # pairs looked at together: bounds the temporary arrays of a pass over the lengths
TABLE_CELLS = 512  # cells a side of the table of lengths; longer sentences share cells
CANDIDATES = 40  # lengths a side the first, exhaustive search may choose from
REFINED = 2  # chains of the first search that the second one starts from
MOVES = tuple(itertools.product((-3, -1, 0, 1, 3), repeat=2))  # of one anchor, in the second search

Anchor = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Bucket:
    """One padded shape: source (rows, source_length), target (rows, target_length)."""

    rows: int
    source_length: int
    target_length: int

    @property
    def positions(self) -> int:
        """Positions of a batch, both sides together."""
        return self.rows * (self.source_length + self.target_length)


def choose_buckets(
    lengths: Int[np.ndarray, "N 2"], batch: ml_collections.ConfigDict | ml_collections.FrozenConfigDict, longest: Anchor | None = None
) -> tuple[Bucket, ...]:
    """The ladder of at most `batch.max_buckets` shapes with the fewest padded positions an epoch, filler rows counted.

    Among all chains over a grid of lengths the best is found exactly, by dynamic programming over the table of lengths; then
    its anchors are moved while that makes an epoch smaller. A function of the lengths' histogram alone.

    Args:
      lengths: pieces of source and target, end-of-sentence included.
      batch: `config.batch`.
      longest: source and target length the largest bucket has to hold; None: the longest of `lengths` on each side.

    Raises:
      UserError: `batch.tokens` cannot hold `batch.row_multiple` rows of the longest sentence, or there are no sentences.
    """
    if len(lengths) == 0:
        raise UserError("data: no sentence pair is left to train on; see the counts of dropped pairs in the log")
    top = tuple(int(length) for length in lengths.max(axis=0))
    if longest is not None:
        top = (max(top[0], longest[0]), max(top[1], longest[1]))
    if batch.row_multiple * max(top) > batch.tokens:
        raise UserError(
            f"batch.tokens={batch.tokens}: the longest sentence has {max(top)} pieces and a batch has at least "
            f"batch.row_multiple={batch.row_multiple} rows; raise batch.tokens to {batch.row_multiple * max(top)} or more, "
            f"or lower data.max_length to {batch.tokens // batch.row_multiple}"
        )
    unit = math.ceil(max(top) / TABLE_CELLS)
    contained = _contained(lengths, unit, top)

    def bucket(anchor: Anchor) -> tuple[int, int, int]:
        source, target = min(anchor[0] * unit, top[0]), min(anchor[1] * unit, top[1])
        return batch.tokens // max(source, target) // batch.row_multiple * batch.row_multiple, source, target

    def epoch_positions(chain: Sequence[Anchor]) -> int:
        shapes = [bucket(anchor) for anchor in chain]
        within = [0] + [int(contained[anchor]) for anchor in chain]
        counts = [high - low for low, high in itertools.pairwise(within)]
        return _fill(counts, [rows for rows, _, _ in shapes], [rows * (source + target) for rows, source, target in shapes])[0]

    chains = sorted(_best_chains(contained, batch.max_buckets), key=epoch_positions)[:REFINED]
    best = min((_improve(chain, epoch_positions) for chain in chains), key=epoch_positions)
    return tuple(Bucket(*bucket(anchor)) for anchor in best)


def assign(lengths: Int[np.ndarray, "N 2"], buckets: Sequence[Bucket]) -> UInt8[np.ndarray, " N"]:
    """The number of each pair's bucket, uint8; `len(buckets)` where none holds it."""
    source_ladder = np.array([bucket.source_length for bucket in buckets])
    target_ladder = np.array([bucket.target_length for bucket in buckets])
    assigned = np.empty(len(lengths), np.uint8)
    for start in range(0, len(lengths), CHUNK):
        part = np.asarray(lengths[start : start + CHUNK])
        source_level = np.searchsorted(source_ladder, part[:, 0])
        target_level = np.searchsorted(target_ladder, part[:, 1])
        assigned[start : start + CHUNK] = np.maximum(source_level, target_level)
    return assigned


def fill(counts: Sequence[int], buckets: Sequence[Bucket]) -> tuple[int, tuple[bool, ...]]:
    """How an epoch of `counts` pairs a bucket is batched with the fewest positions.

    Each bucket makes its full batches; its remainder either makes a part-empty batch there (the bucket is closed) or moves up
    and joins the next bucket's pairs. The best choice is a shortest path from closed bucket to closed bucket.

    Returns:
      (positions of the epoch, filler rows included; for each bucket, whether it is closed).
    """
    positions, closed = _fill(counts, [bucket.rows for bucket in buckets], [bucket.positions for bucket in buckets])
    return positions, tuple(level in closed for level in range(len(buckets)))


def _fill(counts: Sequence[int], rows: Sequence[int], positions: Sequence[int]) -> tuple[int, set[int]]:
    """`fill`, of buckets given by rows and positions of a batch: the search asks thousands of times."""
    best = [0] + [math.inf] * len(counts)  # best[k]: buckets below k are done and nothing moves up into k
    came_from = [0] * len(best)
    for first in range(len(counts)):
        epoch, moved = best[first], 0
        for last in range(first, len(counts)):
            full, moved = divmod(counts[last] + moved, rows[last])
            epoch += full * positions[last]
            closed = epoch + (positions[last] if moved else 0)
            if closed < best[last + 1]:
                best[last + 1], came_from[last + 1] = closed, first
    closed_levels, level = set(), len(counts)
    while level:
        closed_levels.add(level - 1)
        level = came_from[level]
    return best[-1], closed_levels


def _contained(lengths: Int[np.ndarray, "N 2"], unit: int, top: Anchor) -> Int[np.ndarray, "S T"]:
    """Number of pairs that fit each (source, target) length, in cells of `unit` pieces, up to `top`."""
    shape = (math.ceil(top[0] / unit) + 1, math.ceil(top[1] / unit) + 1)
    histogram = np.zeros(shape[0] * shape[1], np.int64)
    for start in range(0, len(lengths), CHUNK):
        cells = -(-np.asarray(lengths[start : start + CHUNK], np.int64) // unit)
        histogram += np.bincount(cells[:, 0] * shape[1] + cells[:, 1], minlength=histogram.size)
    return histogram.reshape(shape).cumsum(axis=0).cumsum(axis=1)


def _best_chains(contained: Int[np.ndarray, "S T"], most: int) -> Iterator[list[Anchor]]:
    """For each number of buckets up to `most`, the chain of candidate anchors with the least padding, remainders aside."""
    source, target = (grid.ravel() for grid in np.meshgrid(*map(_candidates, _marginals(contained)), indexing="ij"))
    count = contained[source, target]
    above = (source[:, None] <= source) & (target[:, None] <= target)
    # added[i, j]: positions of the pairs that anchor j holds and anchor i does not, when they are padded to anchor j
    added = np.where(above, (count - count[:, None]) * (source + target), np.iinfo(np.int64).max // 2)
    positions, steps = count * (source + target), []
    for _ in range(most):
        anchor, chain = len(source) - 1, [len(source) - 1]
        for step in reversed(steps):
            anchor = step[anchor]
            chain.append(anchor)
        yield [(int(source[index]), int(target[index])) for index in sorted(set(chain))]
        through = positions[:, None] + added
        steps.append(through.argmin(axis=0))
        positions = through.min(axis=0)


def _marginals(contained: Int[np.ndarray, "S T"]) -> tuple[Int[np.ndarray, " S"], Int[np.ndarray, " T"]]:
    """Pairs of each source length, and of each target length."""
    return np.diff(contained[:, -1], prepend=0), np.diff(contained[-1], prepend=0)


def _candidates(pairs: Int[np.ndarray, " L"]) -> Int[np.ndarray, " C"]:
    """At most CANDIDATES lengths that share the sentences' positions evenly; the longest is the last."""
    if len(pairs) <= CANDIDATES:
        return np.arange(1, len(pairs))
    share = np.cumsum(pairs * np.arange(len(pairs)))
    levels = np.searchsorted(share, share[-1] * np.arange(1, CANDIDATES) / CANDIDATES)
    return np.unique(np.append(levels, len(pairs) - 1))


def _improve(chain: list[Anchor], epoch_positions: Callable[[list[Anchor]], int]) -> list[Anchor]:
    """Moves single anchors, the last excepted, while that makes an epoch smaller."""
    fewest, improved = epoch_positions(chain), True
    while improved:
        improved = False
        for level, (by_source, by_target) in itertools.product(range(len(chain) - 1), MOVES):
            below = chain[level - 1] if level else (1, 1)
            moved = (chain[level][0] + by_source, chain[level][1] + by_target)
            if not all(low <= at <= high for low, at, high in zip(below, moved, chain[level + 1], strict=True)):
                continue
            candidate = [*chain[:level], moved, *chain[level + 1 :]]
            if (positions := epoch_positions(candidate)) < fewest:
                chain, fewest, improved = candidate, positions, True
    return chain
