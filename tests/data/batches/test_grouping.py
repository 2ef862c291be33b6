"""The plan of groups: each group once, whole, in consecutive rows, within the token budget."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.batches.test_bucketing import as_lengths, batch_config
from transformer.config.types import with_changes
from transformer.data.batches import grouping

TOKENS = 640


def config_of(size: int, **changes):
    return with_changes(batch_config(tokens=TOKENS, row_multiple=2, **changes), candidates=size)


def random_lengths(seed: int, count: int, size: int) -> np.ndarray:
    """Returns the lengths of groups whose candidates share their source."""
    random = np.random.default_rng(seed)
    sources = random.integers(1, 30, count)
    targets = random.integers(1, 30, (count, size))
    return np.stack([np.repeat(sources, size), targets.ravel()], axis=1).astype(np.int32)


@given(
    seed=st.integers(0, 1000),
    count=st.integers(1, 200),
    size=st.integers(2, 6),
    max_buckets=st.integers(1, 6),
)
def test_each_group_is_once_and_whole_in_consecutive_rows(seed, count, size, max_buckets):
    lengths = random_lengths(seed, count, size)
    buckets = grouping.choose_shapes(lengths, config_of(size, max_buckets=max_buckets))
    assert 1 <= len(set(buckets)) <= max_buckets
    for bucket in buckets:
        # equally many groups on each of two devices
        assert bucket.candidates == size and bucket.rows % (2 * size) == 0
        assert bucket.rows * max(bucket.source_length, bucket.target_length) <= TOKENS

    for random in (np.random.default_rng(seed), None):
        plan = grouping.plan_epoch(lengths, buckets, random)
        seen = []
        for number in range(len(plan)):
            batch = plan[number]
            held = (batch.bucket.source_length, batch.bucket.target_length)
            assert (lengths[batch.sentences] <= held).all()
            assert batch.bucket in buckets and len(batch.sentences) <= batch.bucket.rows
            assert batch.rows.tolist() == list(range(len(batch.sentences)))
            groups = batch.sentences.reshape(-1, size)
            assert (groups == groups[:, :1] + np.arange(size)).all()
            seen += (groups[:, 0] / size).tolist()
        assert sorted(seen) == list(range(count))
        positions = sum(plan[number].bucket.positions for number in range(len(plan)))
        assert plan.padding_fraction == pytest.approx(1 - lengths.sum() / positions)


def test_a_plan_is_a_function_of_the_lengths_and_the_seed():
    lengths = random_lengths(0, 100, 4)
    buckets = grouping.choose_shapes(lengths, config_of(4))
    first, same, other = (
        grouping.plan_epoch(lengths, buckets, np.random.default_rng([seed, 3]))
        for seed in (0, 0, 1)
    )
    assert np.array_equal(first.sentences, same.sentences)
    assert np.array_equal(first.slices, same.slices)
    assert not np.array_equal(first.sentences, other.sentences)


def test_the_longest_candidate_decides_the_bucket():
    lengths = as_lengths([(3, 4), (3, 20)] * 50 + [(3, 4), (3, 4)] * 50)
    buckets = grouping.choose_shapes(lengths, config_of(2))
    assert [bucket.target_length for bucket in buckets] == [4, 20]
    plan = grouping.plan_epoch(lengths, buckets, np.random.default_rng(0))
    assert [stats.tokens for stats in plan.stats] == [50 * 14, 50 * 30]
