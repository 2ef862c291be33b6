"""Batches for decoding: sequences of similar length, padded to one of a few shapes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from transformer.decoding.parallel import DeviceQueues
from transformer.decoding.replicas import Replicas
from transformer.special_tokens import PAD

SHORTEST = 16  # the smallest padded length: shorter ones would save little, and each is compiled
ROW_MULTIPLE = 8  # of batches with at least so many rows: TPUs compute on tiles of 8 rows


class DecodingBatch(NamedTuple):
    """The sequences at `indices`, one a row of an array of shape (rows, length)."""

    rows: int
    length: int
    indices: list[int]


def padded_lengths(longest: int, shortest: int = SHORTEST) -> tuple[int, ...]:
    """Returns the padded lengths: powers of two times `shortest`, and last `longest`."""
    lengths = [min(shortest, longest)]
    while lengths[-1] < longest:
        lengths.append(min(2 * lengths[-1], longest))
    return tuple(lengths)


def row_count(length: int, max_positions: int) -> int:
    """Returns the number of rows of `length` that fit in `max_positions`, at least one."""
    rows = max(max_positions // length, 1)
    return rows if rows < ROW_MULTIPLE else rows // ROW_MULTIPLE * ROW_MULTIPLE


def make_batches(
    lengths: Mapping[int, int], longest: int, extra_length: int, max_positions: int, shortest: int = SHORTEST
) -> list[DecodingBatch]:
    """Returns batches of sequences of similar length, shortest first.

    The padded length and the number of rows depend only on the sequence's own length. So a sequence always meets the
    same compiled function, whatever its neighbours are.

    Args:
      lengths: length of each sequence by its index, at most `longest`.
      longest: the largest padded length.
      extra_length: positions of a row beyond the padded length.
      max_positions: limit on the positions of a batch; a batch of one row may exceed it.
      shortest: the smallest padded length.
    """
    order = sorted(lengths, key=lambda i: (lengths[i], i))
    batches, begin = [], 0
    for padded_length in padded_lengths(longest, shortest):
        end = begin
        while end < len(order) and lengths[order[end]] <= padded_length:
            end += 1
        rows = row_count(padded_length + extra_length, max_positions)
        batches += [DecodingBatch(rows, padded_length, order[i : min(i + rows, end)]) for i in range(begin, end, rows)]
        begin = end
    return batches


def map_rows(
    function: DeviceQueues,
    replicas: Replicas,
    sides: Sequence[Sequence[Sequence[int]]],
    longest: int,
    max_positions: int,
) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the index of every item and its row of `function`'s result, in any order.

    Args:
      function: of one array (rows, length) for each side, padded with PAD; compiled for each padded length.
      sides: the token sequences of the items: [sources], or [sources, targets] for pairs.
      longest, max_positions: see `make_batches`.
    """

    def arrays_of(batch: DecodingBatch) -> list[np.ndarray]:
        return [pad([side[i] for i in batch.indices], batch.rows, batch.length) for side in sides]

    lengths = {i: max(map(len, item)) for i, item in enumerate(zip(*sides, strict=True))}
    batches = make_batches(lengths, longest, 0, max_positions)
    for batch, result in function.map(replicas, batches[::-1], arrays_of):
        yield from zip(batch.indices, result, strict=False)


def pad(sequences: Sequence[Sequence[int]], rows: int, length: int) -> Int[np.ndarray, "rows length"]:
    """Returns the sequences as rows, padded with PAD; the remaining rows are all PAD."""
    padded = np.full((rows, length), PAD, np.int32)
    for row, sequence in zip(padded, sequences, strict=False):
        row[: len(sequence)] = sequence
    return padded
