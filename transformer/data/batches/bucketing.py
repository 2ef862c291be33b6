"""The bucket plan: "sentence pairs were batched together by approximate sequence length" (section
5.1).

Every shape is compiled once, so there are few. The buckets form a chain: each is at least as long
as the one below it on both sides, so that pairs which fill no batch of theirs fit every bucket
above.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, UInt16

from transformer.config.types import Config
from transformer.data.batches.epoch_plan import Bucket, BucketStats, EpochPlan

CANDIDATES = 128  # sizes from which the buckets are chosen
BUCKET_COST = 0.05  # of a full batch: keeps a small corpus from being split into many small batches


def choose_shapes(lengths: Int[np.ndarray, "N 2"], batch: Config) -> tuple[Bucket, ...]:
    """Returns the chain of at most `batch.max_buckets` shapes that pads an epoch least.

    Its lengths are multiples of `batch.length_multiple`. A bucket has as many rows as
    `batch.tokens` allows, at least `batch.row_multiple`, or fewer if its pairs fit in as many
    batches: that leaves fewer filler rows in the last one. `lengths` count end-of-sentence.
    """
    multiple = batch.row_multiple
    sizes = _candidates(lengths, batch.length_multiple)
    counts = np.bincount(assign(lengths, sizes), minlength=len(sizes))
    chosen = _least_padded_chain(sizes, counts, batch.max_buckets, BUCKET_COST * 2 * batch.tokens)
    counts = np.diff(np.cumsum(counts)[chosen], prepend=0)
    buckets = []
    for (source, target), count in zip(sizes[chosen].tolist(), counts.tolist(), strict=True):
        rows = max(batch.tokens // max(source, target) // multiple, 1) * multiple
        batches = -(-count // rows)
        if batches:
            rows = -(-count // (batches * multiple)) * multiple
        buckets.append(Bucket(rows, source, target))
    return tuple(buckets)


def assign(
    lengths: Int[np.ndarray, "N 2"], sizes: Int[np.ndarray, "C 2"]
) -> UInt16[np.ndarray, " N"]:
    """Returns the number of the first size in a chain that holds each pair; `len(sizes)` if none
    does.
    """
    source, target = (
        np.searchsorted(sizes[:, side], lengths[:, side]).astype(np.uint16) for side in (0, 1)
    )
    return np.maximum(source, target)


def _candidates(lengths: Int[np.ndarray, "N 2"], multiple: int) -> Int[np.ndarray, "C 2"]:
    """Returns a chain of sizes up to the longest: quantiles of the tokens by length, all multiples
    of `multiple`.
    """
    fractions = np.arange(1, CANDIDATES + 1) / CANDIDATES
    sides = []
    for side in (0, 1):
        pairs = np.bincount(lengths[:, side])
        rounded = -(-np.arange(len(pairs)) // multiple) * multiple
        tokens = np.cumsum(pairs * rounded)
        sides.append(rounded[[*np.searchsorted(tokens, fractions * tokens[-1]), -1]])
    return np.unique(np.transpose(sides), axis=0)


def _least_padded_chain(
    sizes: Int[np.ndarray, "C 2"], counts: Int[np.ndarray, " C"], most: int, bucket_cost: float
) -> list[int]:
    """Returns which sizes, at most `most` and the last one included, hold all pairs in the fewest
    positions.

    Dynamic programming over the number of buckets. `least[j]` is the cost of the pairs up to size j
    if j is a bucket. `counts` are pairs by their first size; another bucket has to save
    `bucket_cost` positions.
    """
    held = np.concatenate([[0], np.cumsum(counts)])  # held[j]: pairs below size j
    # cost[i, j]: positions of a bucket of size j for the pairs of the sizes i to j
    cost = (held[1:] - held[:-1, None]) * sizes.sum(axis=1) + bucket_cost
    cost = np.where(np.tri(len(sizes), dtype=bool).T, cost, np.inf)
    least = np.full(len(sizes), np.inf)
    first_sizes = []
    for _ in range(most):
        total = np.concatenate([[0], least[:-1]])[:, None] + cost
        least = total.min(axis=0)
        first_sizes.append(total.argmin(axis=0))
    chain = []
    end = len(sizes) - 1
    for first in reversed(first_sizes):
        if end >= 0:
            chain.append(end)
            end = int(first[end]) - 1
    return chain[::-1]


def plan_epoch(
    lengths: Int[np.ndarray, "N 2"], buckets: Sequence[Bucket], random: np.random.Generator | None
) -> EpochPlan:
    """Plans an epoch in these buckets.

    `random` shuffles sentences and batches; without it, they keep their order.
    """
    assigned = assign(
        lengths, np.array([(bucket.source_length, bucket.target_length) for bucket in buckets])
    )
    counts = np.bincount(assigned, minlength=len(buckets))
    remainder = np.empty(0, np.int32)
    placed = 0
    sentences = []
    slices = []
    stats = []
    for number, bucket in enumerate(buckets):
        members = np.concatenate([remainder, np.flatnonzero(assigned == number).astype(np.int32)])
        if random is not None:
            random.shuffle(members)
        stop = len(members)
        left = len(members) % bucket.rows
        # The remainder moves up if the next bucket that has batches pads it less than a further
        # batch here would.
        above = next((buckets[i] for i in range(number + 1, len(buckets)) if counts[i]), None)
        if (
            above is not None
            and left * (above.width - bucket.width) < (bucket.rows - left) * bucket.width
        ):
            stop -= left
        members, remainder = members[:stop], members[stop:]
        starts = np.arange(0, stop, bucket.rows)
        slices.append(placed + np.stack([starts, np.minimum(starts + bucket.rows, stop)], axis=1))
        placed += stop
        sentences.append(members)
        tokens = np.take(lengths, members, axis=0).sum(dtype=np.int64)
        stats.append(BucketStats(bucket, len(starts), int(tokens)))
    slices = np.concatenate(slices)
    bucket_ids = np.repeat(np.arange(len(buckets), dtype=np.uint16), [use.batches for use in stats])
    if random is not None:
        order = random.permutation(len(slices))
        slices = slices[order]
        bucket_ids = bucket_ids[order]
    return EpochPlan(np.concatenate(sentences), slices, bucket_ids, tuple(stats))
