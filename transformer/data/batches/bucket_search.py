"""Finds the chain of bucket lengths that pads an epoch least: exactly on a grid, then by moving single buckets."""

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Int

CELLS = 512  # cells a side of the table of lengths; sentences that are longer share cells
CANDIDATES = 40  # lengths a side the exact search may choose from
STARTS = 2  # chains of the exact search from which the second one starts
MOVES = tuple(itertools.product((-3, -1, 0, 1, 3), repeat=2))  # of one bucket in the second search, in cells

BucketLengths = tuple[int, int]  # the longest source and target of a bucket, in cells of the table


class LengthTable:
    """The histogram of pairs of lengths, summed up from below: for each pair of lengths the pairs that fit in it."""

    def __init__(self, lengths: Int[np.ndarray, "N 2"], top: tuple[int, int], chunk: int) -> None:
        """`top`: the longest source and target to provide for; `chunk`: pairs looked at together."""
        self._top, self._unit = top, math.ceil(max(top) / CELLS)
        shape = tuple(math.ceil(side / self._unit) + 1 for side in top)
        histogram = np.zeros(shape[0] * shape[1], np.int64)
        for start in range(0, len(lengths), chunk):
            cells = -(-np.asarray(lengths[start : start + chunk], np.int64) // self._unit)
            histogram += np.bincount(cells[:, 0] * shape[1] + cells[:, 1], minlength=histogram.size)
        self.counts: Int[np.ndarray, "S T"] = histogram.reshape(shape).cumsum(axis=0).cumsum(axis=1)

    def within(self, anchor: BucketLengths) -> int:
        """Pairs that a bucket of these lengths holds."""
        return int(self.counts[anchor])

    def lengths_at(self, anchor: BucketLengths) -> tuple[int, int]:
        """Source and target length in pieces."""
        return min(anchor[0] * self._unit, self._top[0]), min(anchor[1] * self._unit, self._top[1])


def best_chain(
    table: LengthTable, most: int, epoch_cost: Callable[[list[BucketLengths]], float]
) -> list[BucketLengths]:
    """The chain of at most `most` buckets, the last of which holds every pair, with the least `epoch_cost`."""
    starts = sorted(_least_padded_chains(table, most), key=epoch_cost)[:STARTS]
    return min((_improved(chain, epoch_cost) for chain in starts), key=epoch_cost)


def _least_padded_chains(table: LengthTable, most: int) -> Iterator[list[BucketLengths]]:
    """For 1, 2, ... `most` buckets the chain over candidate lengths with the least padding, part-empty batches aside.

    Dynamic programming over the last bucket of a chain: what a bucket costs depends on the one below alone.
    """
    sides = (np.diff(table.counts[:, -1], prepend=0), np.diff(table.counts[-1], prepend=0))
    source, target = (grid.ravel() for grid in np.meshgrid(*map(_candidates, sides), indexing="ij"))
    held = table.counts[source, target]
    above = (source[:, None] <= source) & (target[:, None] <= target)
    # added[i, j]: positions of the pairs that candidate j holds and candidate i below it does not, padded to j
    added = np.where(above, (held - held[:, None]) * (source + target), np.iinfo(np.int64).max // 2)
    positions, below = held * (source + target), []
    for _ in range(most):
        chain = [len(source) - 1]
        for choice in reversed(below):
            chain.append(choice[chain[-1]])
        yield [(int(source[index]), int(target[index])) for index in sorted(set(chain))]
        through = positions[:, None] + added
        below.append(through.argmin(axis=0))
        positions = through.min(axis=0)


def _candidates(pairs: Int[np.ndarray, " L"]) -> Int[np.ndarray, " C"]:
    """At most CANDIDATES lengths with evenly many pieces between them, the longest last. `pairs`: of each length."""
    if len(pairs) <= CANDIDATES:
        return np.arange(1, len(pairs))
    pieces = np.cumsum(pairs * np.arange(len(pairs)))
    levels = np.searchsorted(pieces, pieces[-1] * np.arange(1, CANDIDATES) / CANDIDATES)
    return np.unique(np.append(levels, len(pairs) - 1))


def _improved(chain: list[BucketLengths], epoch_cost: Callable[[list[BucketLengths]], float]) -> list[BucketLengths]:
    """Moves single buckets, the last excepted, within the chain's order while that lowers the cost."""
    least, improved = epoch_cost(chain), True
    while improved:
        improved = False
        for level, (by_source, by_target) in itertools.product(range(len(chain) - 1), MOVES):
            below = chain[level - 1] if level else (1, 1)
            moved = (chain[level][0] + by_source, chain[level][1] + by_target)
            if not all(low <= at <= high for low, at, high in zip(below, moved, chain[level + 1], strict=True)):
                continue
            candidate = [*chain[:level], moved, *chain[level + 1 :]]
            if (cost := epoch_cost(candidate)) < least:
                chain, least, improved = candidate, cost, True
    return chain
