"""The batch plan: which sentences share a batch (section 5.1), and the arrays of a batch.

A plan holds indices only and is a pure function of (lengths, buckets, seed, epoch), so batch i of an epoch is a pure function of its
number: a run resumes by an integer, and a batch does not depend on the devices or hosts that share it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int, UInt8

from transformer.data.buckets import Bucket, assign, fill
from transformer.data.tokenizer import BOS, EOS, PAD
from transformer.errors import UserError


@runtime_checkable
class Sentences(Protocol):
    """What a batch is filled from: a `corpus.Corpus`, as far as it is needed here."""

    lengths: Int[np.ndarray, "N 2"]

    def source(self, index: int) -> Int[np.ndarray, " S"]: ...

    def target(self, index: int) -> Int[np.ndarray, " T"]: ...


@dataclasses.dataclass(frozen=True)
class Batch:
    """Which sentences make a batch, and the row each stands in; sentences of one row stand in order, side by side."""

    bucket: Bucket
    sentences: Int[np.ndarray, " N"]
    rows: Int[np.ndarray, " N"]


@dataclasses.dataclass(frozen=True)
class BucketUse:
    """What a bucket does in an epoch. `padding_fraction`: positions without a piece, filler rows included, over all positions."""

    bucket: Bucket
    batches: int
    sentences: int
    padding_fraction: float


@dataclasses.dataclass(frozen=True)
class EpochPlan:
    """The batches of an epoch, in order: `len(plan)` of them, `plan[i]` the i-th.

    Attributes:
      buckets: the shapes, shortest first.
      sentences: every sentence once, so that each batch is a slice.
      slices: start and stop in `sentences` of each batch.
      shapes: number of each batch's bucket.
      uses: what each bucket does.
      padding_fraction: positions without a piece, filler rows included, over all positions of both sides.
    """

    buckets: tuple[Bucket, ...]
    sentences: Int[np.ndarray, " N"]
    slices: Int[np.ndarray, "M 2"]
    shapes: UInt8[np.ndarray, " M"]
    uses: tuple[BucketUse, ...]
    padding_fraction: float

    def __len__(self) -> int:
        return len(self.slices)

    def __getitem__(self, number: int) -> Batch:
        part = slice(*self.slices[number])
        sentences = self.sentences[part]
        return Batch(self.buckets[self.shapes[number]], sentences, np.arange(len(sentences)))


def plan_epoch(lengths: Int[np.ndarray, "N 2"], buckets: Sequence[Bucket], seed: int, epoch: int) -> EpochPlan:
    """Batches of an epoch of training: random sentences of similar length together, in random order.

    Args:
      lengths: pieces of source and target, end-of-sentence included.
      buckets: from `buckets.choose_buckets`.

    Raises:
      UserError: a sentence is longer than the largest bucket.
    """
    return _plan(lengths, buckets, np.random.default_rng([seed, epoch]))


def plan_in_order(lengths: Int[np.ndarray, "N 2"], buckets: Sequence[Bucket]) -> EpochPlan:
    """The same batches without chance, for validation: sentences and buckets in their own order."""
    return _plan(lengths, buckets, None)


def _plan(lengths: Int[np.ndarray, "N 2"], buckets: Sequence[Bucket], random: np.random.Generator | None) -> EpochPlan:
    assigned = assign(lengths, buckets)
    counts = np.bincount(assigned, minlength=len(buckets))
    if len(counts) > len(buckets):
        raise UserError(
            f"data: {counts[-1]} sentence pairs are longer than the largest bucket, {buckets[-1].source_length} source and "
            f"{buckets[-1].target_length} target pieces; lower data.max_length"
        )
    _, closed = fill(counts.tolist(), buckets)
    waiting, parts, slices, shapes, uses = np.empty(0, np.int32), [], [], [], []
    start = 0
    for level, bucket in enumerate(buckets):
        own = np.flatnonzero(assigned == level).astype(np.int32)
        members = np.concatenate([waiting, own])
        if random is not None:
            random.shuffle(members)
        taken = len(members) if closed[level] else len(members) // bucket.rows * bucket.rows
        members, waiting = members[:taken], members[taken:]
        starts = np.arange(start, start + taken, bucket.rows)
        start += taken
        parts.append(members)
        slices.append(np.stack([starts, np.minimum(starts + bucket.rows, start)], axis=1))
        shapes.append(np.full(len(starts), level, np.uint8))
        uses.append(bucket_use(bucket, len(starts), lengths, members))
    slices, shapes = np.concatenate(slices), np.concatenate(shapes)
    if random is not None:
        order = random.permutation(len(slices))
        slices, shapes = slices[order], shapes[order]
    return EpochPlan(tuple(buckets), np.concatenate(parts), slices, shapes, tuple(uses), total_padding(uses))


def bucket_use(bucket: Bucket, batches: int, lengths: Int[np.ndarray, "N 2"], members: Int[np.ndarray, " M"]) -> BucketUse:
    """What `bucket` does when the sentences `members` fill `batches` batches of it."""
    pieces = int(lengths[members].sum(dtype=np.int64))
    return BucketUse(bucket, batches, len(members), 1 - pieces / max(1, batches * bucket.positions) if batches else 0.0)


def total_padding(uses: Sequence[BucketUse]) -> float:
    """Share of an epoch's positions, both sides and filler rows included, that hold no piece."""
    positions = [use.batches * use.bucket.positions for use in uses]
    return sum(use.padding_fraction * count for use, count in zip(uses, positions, strict=True)) / sum(positions)


def assemble(corpus: Sentences, batch: Batch, packed: bool) -> dict[str, Int[np.ndarray, "B _"]]:
    """The int32 arrays of a batch, PAD where no piece stands.

    Returns:
      `source` (B, S) and `target_output` (B, T): pieces and EOS; `target_input` (B, T): BOS and pieces. Packed also, for each of source
      and target, `_segments`: 1, 2, ... for the sentences of a row, 0 for padding; and `_positions`: from 0 in each sentence.
    """
    bucket, arrays = batch.bucket, {}
    for side, column, length in (("source", 0, bucket.source_length), ("target", 1, bucket.target_length)):
        lengths = np.asarray(corpus.lengths[batch.sentences, column], np.int64)
        pieces = _pieces_and_end(corpus, side, batch.sentences, lengths)
        within = count_up(lengths)
        first = within == 0
        starts = batch.rows.astype(np.int64) * length + _offsets(batch.rows, lengths)
        places = np.repeat(starts, lengths) + within

        def place(values: Int[np.ndarray, " P"], shape=(bucket.rows, length), places=places) -> Int[np.ndarray, "B L"]:
            array = np.full(shape, PAD, np.int32)
            array.flat[places] = values
            return array

        if side == "source":
            arrays["source"] = place(pieces)
        else:
            arrays["target_input"] = place(np.where(first, BOS, np.roll(pieces, 1)))
            arrays["target_output"] = place(pieces)
        if packed:
            ordinals = 1 + count_up(np.bincount(batch.rows, minlength=bucket.rows))
            arrays[f"{side}_segments"] = place(np.repeat(ordinals, lengths))
            arrays[f"{side}_positions"] = place(within)
    return arrays


def _pieces_and_end(
    corpus: Sentences, side: str, sentences: Int[np.ndarray, " N"], lengths: Int[np.ndarray, " N"]
) -> Int[np.ndarray, " P"]:
    """Pieces of the sentences one after the other, EOS after each."""
    of = corpus.source if side == "source" else corpus.target
    pieces = np.full(lengths.sum(), EOS, np.int32)
    is_piece = np.ones(len(pieces), bool)
    is_piece[np.cumsum(lengths) - 1] = False
    pieces[is_piece] = np.concatenate([of(int(sentence)) for sentence in sentences])
    return pieces


def count_up(counts: Int[np.ndarray, " N"]) -> Int[np.ndarray, " P"]:
    """0, 1, ... up to each count in turn: [2, 3] gives [0, 1, 0, 1, 2]."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _offsets(rows: Int[np.ndarray, " N"], lengths: Int[np.ndarray, " N"]) -> Int[np.ndarray, " N"]:
    """Where each sentence starts in its row; `rows` ascends."""
    before = np.cumsum(lengths) - lengths
    first_of_row = np.searchsorted(rows, rows)
    return before - before[first_of_row]
