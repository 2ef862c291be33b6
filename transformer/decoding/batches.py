"""Which sentences are decoded together, and the few shapes that they are padded to."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from transformer.special_tokens import PAD

SHORTEST = 16  # the lowest rung: shorter ones would save little and be compiled each
ROW_MULTIPLE = 8  # so that rows divide over devices


class Batch(NamedTuple):
    """`rows` x `length` padded positions that hold the sequences at `indices`, one a row."""

    rows: int
    length: int
    indices: list[int]


def ladder(longest: int) -> tuple[int, ...]:
    """The padded lengths there are: each twice the one before, the last `longest`."""
    rungs = [min(SHORTEST, longest)]
    while rungs[-1] < longest:
        rungs.append(min(2 * rungs[-1], longest))
    return tuple(rungs)


def row_count(length: int, tokens: int) -> int:
    """How many rows of `length` have at most `tokens` positions; at least one."""
    rows = max(tokens // length, 1)
    return rows if rows < ROW_MULTIPLE else rows // ROW_MULTIPLE * ROW_MULTIPLE


def plan(lengths: Mapping[int, int], longest: int, room: int, tokens: int) -> list[Batch]:
    """Batches of sequences of similar length, shortest first, of at most `tokens` positions each.

    lengths: of each sequence, by its index; at most `longest`. room: positions each row needs beside the padded length.
    A sequence's padded length, and with it the number of rows of its batch, follow from its own length alone, so
    neighbours cannot change which compiled function it meets.
    """
    order = sorted(lengths, key=lambda i: (lengths[i], i))
    batches, begin = [], 0
    for rung in ladder(longest):
        end = begin
        while end < len(order) and lengths[order[end]] <= rung:
            end += 1
        rows = row_count(rung + room, tokens)
        batches += [Batch(rows, rung, order[i : min(i + rows, end)]) for i in range(begin, end, rows)]
        begin = end
    return batches


def pad(sequences: Sequence[Sequence[int]], rows: int, length: int) -> Int[np.ndarray, "rows length"]:
    """The sequences as rows with PAD after them; rows beyond them are fillers, all PAD."""
    padded = np.full((rows, length), PAD, np.int32)
    for row, sequence in zip(padded, sequences, strict=False):
        row[: len(sequence)] = sequence
    return padded
