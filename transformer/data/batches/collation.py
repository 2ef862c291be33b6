"""The arrays of a batch, from its sentences' pieces."""

from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int, Int32

from transformer.data.batches.bucketing import Batch
from transformer.special_tokens import BOS, EOS, PAD


@runtime_checkable
class Sentences(Protocol):
    """What batches are filled from: a `corpus.Corpus`, as far as it is needed for that."""

    lengths: Int[np.ndarray, "N 2"]

    def tokens(self, side: int, pairs: Int[np.ndarray, " N"]) -> Int32[np.ndarray, " P"]: ...

    def epoch(self, epoch: int, seed: int) -> "Sentences": ...


def assemble(corpus: Sentences, batch: Batch, packed: bool) -> dict[str, Int32[np.ndarray, "B _"]]:
    """The arrays of a batch, each with PAD, 0, wherever no sentence stands.

    Returns:
      `source` (B, S) and `target_output` (B, T): pieces, then EOS; `target_input` (B, T): BOS, then pieces.
      Packed also, of source and of target: `source_segments` (B, S), 1, 2, ... by sentence of the row, and
      `source_positions` (B, S), from 0 in each sentence.
    """
    bucket, arrays = batch.bucket, {}
    for side, length in enumerate((bucket.source_length, bucket.target_length)):
        lengths = corpus.lengths[batch.sentences, side].astype(np.int64)
        positions = ragged_arange(lengths)
        starts = batch.rows * length + _offsets(batch.rows, lengths)
        places = np.repeat(starts, lengths) + positions
        pieces = _pieces_and_end(corpus, side, batch.sentences, lengths)
        values = {"source": pieces}
        if side == 1:
            values = {"target_input": np.where(positions == 0, BOS, np.roll(pieces, 1)), "target_output": pieces}
        if packed:
            name = ("source", "target")[side]
            segments = 1 + ragged_arange(np.bincount(batch.rows))
            values |= {f"{name}_segments": np.repeat(segments, lengths), f"{name}_positions": positions}
        for name, flat in values.items():
            arrays[name] = np.full((bucket.rows, length), PAD, np.int32)
            arrays[name].flat[places] = flat
    return arrays


def ragged_arange(counts: Int[np.ndarray, " N"]) -> Int[np.ndarray, " P"]:
    """0, 1, ... up to each count in turn: [2, 3] gives [0, 1, 0, 1, 2]."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _pieces_and_end(
    corpus: Sentences, side: int, sentences: Int[np.ndarray, " N"], lengths: Int[np.ndarray, " N"]
) -> Int32[np.ndarray, " P"]:
    """Pieces of one side of the sentences, one after the other, EOS after each. `lengths` count the EOS."""
    pieces = np.full(lengths.sum(), EOS, np.int32)
    is_piece = np.ones(len(pieces), bool)
    is_piece[np.cumsum(lengths) - 1] = False
    pieces[is_piece] = corpus.tokens(side, sentences)
    return pieces


def _offsets(rows: Int[np.ndarray, " N"], lengths: Int[np.ndarray, " N"]) -> Int[np.ndarray, " N"]:
    """Where each sentence starts in its row; `rows` ascends."""
    before = np.cumsum(lengths) - lengths
    return before - before[np.searchsorted(rows, rows)]
