"""The plan of groups: the candidates of a source are in consecutive rows of one batch.

A corpus has the candidates of each source as consecutive pairs. The plan treats them as one pair
with their longest source and target, and batches these as the plan of buckets does.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Int

from transformer.config.types import Config, with_changes
from transformer.data.batches import bucketing
from transformer.data.batches.epoch_plan import Bucket, BucketStats, EpochPlan, Lengths


def choose_shapes(lengths: Lengths, batch_config: Config) -> tuple[Bucket, ...]:
    """Returns shapes for groups of `candidates` pairs, as `bucketing.choose_shapes` for pairs.

    The number of groups of a batch is a multiple of `row_multiple`, so that the devices of a mesh
    split no group.
    """
    size = batch_config.candidates
    group_config = with_changes(batch_config, tokens=batch_config.tokens // size)
    buckets = bucketing.choose_shapes(_group_lengths(lengths, size), group_config)
    return tuple(replace(bucket, rows=size * bucket.rows, candidates=size) for bucket in buckets)


def plan_epoch(
    lengths: Lengths, buckets: Sequence[Bucket], random: np.random.Generator | None
) -> EpochPlan:
    """Plans an epoch in these buckets. `random` shuffles groups and batches."""
    size = buckets[0].candidates
    group_buckets = [replace(bucket, rows=bucket.rows // size) for bucket in buckets]
    plan = bucketing.plan_epoch(_group_lengths(lengths, size), group_buckets, random)
    pairs = size * plan.sentences[:, None] + np.arange(size, dtype=np.int32)  # (groups, K)

    # Candidates are shorter than their group, so the tokens of each bucket are counted again.
    sums = np.append(0, np.cumsum(lengths[pairs].sum(axis=(1, 2))))  # before each group
    tokens_of_batch = np.diff(sums[plan.slices])[:, 0]
    tokens = np.bincount(plan.bucket_ids, tokens_of_batch, len(buckets)).astype(int)
    stats = [
        BucketStats(bucket, group_stats.batches, bucket_tokens)
        for bucket, group_stats, bucket_tokens in zip(
            buckets, plan.stats, tokens.tolist(), strict=True
        )
    ]
    return EpochPlan(pairs.ravel(), size * plan.slices, plan.bucket_ids, tuple(stats))


def _group_lengths(lengths: Lengths, size: int) -> Int[np.ndarray, "G 2"]:
    """Returns the longest source and target of each group."""
    return lengths.reshape(-1, size, 2).max(axis=1)
