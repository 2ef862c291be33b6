"""The bucket plan: "sentence pairs were batched together by approximate sequence length" (5.1).

Each shape is compiled once, so a run has few shapes. The buckets form a chain: each bucket is at
least as long as the one before it, on both sides. Pairs that do not fill a batch of their bucket
therefore fit every later bucket.
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, UInt16

from transformer.config.types import Config
from transformer.data.batches.epoch_plan import Bucket, BucketStats, EpochPlan, Lengths

CANDIDATES = 128  # sizes from which the buckets are chosen
BUCKET_COST = 0.05  # of a full batch: keeps a small corpus from being split into many small batches

Sizes = Int[np.ndarray, "C 2"]  # source and target lengths of a chain


def choose_shapes(lengths: Lengths, batch_config: Config) -> tuple[Bucket, ...]:
    """Returns a chain of at most `max_buckets` shapes that minimizes the padding of an epoch.

    Lengths are multiples of `length_multiple`, and the number of rows is a multiple of
    `row_multiple`. A bucket has as many rows as `tokens` allows. It has fewer if its pairs then fit
    the same number of batches, because this leaves fewer filler rows in the last batch.
    """
    # Choose the lengths that give the fewest positions for all pairs.
    multiple = batch_config.row_multiple
    sizes = _candidate_sizes(lengths, batch_config.length_multiple)
    counts = np.bincount(assign_buckets(lengths, sizes), minlength=len(sizes))
    bucket_cost = BUCKET_COST * 2 * batch_config.tokens
    chain = _least_padded_chain(sizes, counts, batch_config.max_buckets, bucket_cost)

    counts = np.diff(np.cumsum(counts)[chain], prepend=0)  # pairs of each bucket
    buckets = []
    for (source, target), count in zip(sizes[chain].tolist(), counts.tolist(), strict=True):
        # Neither side has more than `tokens` positions, unless `row_multiple` rows have more.
        max_rows = batch_config.tokens // max(source, target)
        rows = max(max_rows // multiple, 1) * multiple

        # Fewer rows, if the pairs then fit the same number of batches.
        num_batches = math.ceil(count / rows)
        if num_batches:
            rows = math.ceil(count / (num_batches * multiple)) * multiple
        buckets.append(Bucket(rows, source, target))
    return tuple(buckets)


def assign_buckets(lengths: Lengths, sizes: Sizes) -> UInt16[np.ndarray, " N"]:
    """Returns the index of the first size in a chain that fits each pair; C if no size does."""
    first_fits = []
    for side in (0, 1):
        indices = np.searchsorted(sizes[:, side], lengths[:, side])
        first_fits.append(indices.astype(np.uint16))  # saves memory for millions of pairs
    return np.maximum(*first_fits)


def _candidate_sizes(lengths: Lengths, multiple: int) -> Sizes:
    """Returns a chain of multiples of `multiple`, up to the longest length of each side.

    On each side, about the same number of tokens lies between two successive lengths.
    """
    fractions = np.arange(1, CANDIDATES + 1) / CANDIDATES
    sides = []
    for side in (0, 1):
        # The cumulative number of tokens by length, with lengths rounded up to the multiple.
        pairs = np.bincount(lengths[:, side])
        rounded = -(-np.arange(len(pairs)) // multiple) * multiple
        tokens = np.cumsum(pairs * rounded)

        # Quantiles of the tokens, and the longest length.
        quantiles = np.searchsorted(tokens, fractions * tokens[-1])
        sides.append(rounded[np.append(quantiles, -1)])
    return np.unique(np.transpose(sides), axis=0)  # (C, 2)


def _least_padded_chain(
    sizes: Sizes, counts: Int[np.ndarray, " C"], max_buckets: int, bucket_cost: float
) -> list[int]:
    """Returns the indices of at most `max_buckets` sizes that minimize the positions of all pairs.

    The last size is always one of them. `counts` gives the number of pairs whose first fitting size
    is each of the sizes. A further bucket must save `bucket_cost` positions.
    """
    # cost[i, j]: positions of a bucket of size j for the pairs of the sizes i to j
    below = np.concatenate([[0], np.cumsum(counts)])  # pairs below each size
    cost = (below[1:] - below[:-1, None]) * sizes.sum(axis=1) + bucket_cost  # (C, C)
    cost = np.where(np.tri(len(sizes), dtype=bool).T, cost, np.inf)

    # Dynamic programming over the number of buckets. least[j] is the cost of the pairs of the sizes
    # up to j if j is a bucket.
    least = np.full(len(sizes), np.inf)
    first_sizes = []
    for _ in range(max_buckets):
        total = np.concatenate([[0], least[:-1]])[:, None] + cost
        least = total.min(axis=0)
        first_sizes.append(total.argmin(axis=0))

    # Follow the minima back from the last size.
    chain = []
    end = len(sizes) - 1
    for first in reversed(first_sizes):
        if end >= 0:
            chain.append(end)
            end = int(first[end]) - 1
    return chain[::-1]


def plan_epoch(
    lengths: Lengths, buckets: Sequence[Bucket], random: np.random.Generator | None
) -> EpochPlan:
    """Plans an epoch in these buckets.

    `random` shuffles sentences and batches. Without it, both keep their order.
    """
    sizes = np.array([(bucket.source_length, bucket.target_length) for bucket in buckets])
    bucket_of_pair = assign_buckets(lengths, sizes)
    counts = np.bincount(bucket_of_pair, minlength=len(buckets))

    remainder = np.empty(0, np.int32)
    num_planned = 0
    sentences = []
    slices_of_buckets = []
    stats = []
    for number, bucket in enumerate(buckets):
        members = np.flatnonzero(bucket_of_pair == number).astype(np.int32)
        members = np.concatenate([remainder, members])
        if random is not None:
            random.shuffle(members)

        # The pairs of an incomplete batch move up if the next bucket that has batches pads them
        # less than this bucket would.
        stop = len(members)
        incomplete = stop % bucket.rows
        above = next((buckets[i] for i in range(number + 1, len(buckets)) if counts[i]), None)
        if above is not None:
            padding_above = incomplete * (above.width - bucket.width)
            padding_here = (bucket.rows - incomplete) * bucket.width
            if padding_above < padding_here:
                stop -= incomplete
        remainder = members[stop:]
        members = members[:stop]
        sentences.append(members)

        # Each batch is a slice of the sentences of all buckets so far.
        starts = np.arange(0, stop, bucket.rows)
        stops = np.minimum(starts + bucket.rows, stop)
        slices_of_buckets.append(num_planned + np.stack([starts, stops], axis=1))  # (batches, 2)
        num_planned += stop
        tokens = np.take(lengths, members, axis=0).sum(dtype=np.int64)
        stats.append(BucketStats(bucket, len(starts), int(tokens)))

    # Shuffle the batches of all buckets together.
    slices = np.concatenate(slices_of_buckets)
    num_batches = [bucket_stats.batches for bucket_stats in stats]
    bucket_ids = np.repeat(np.arange(len(buckets), dtype=np.uint16), num_batches)
    if random is not None:
        order = random.permutation(len(slices))
        slices = slices[order]
        bucket_ids = bucket_ids[order]
    return EpochPlan(np.concatenate(sentences), slices, bucket_ids, tuple(stats))
