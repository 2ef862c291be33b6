"""The bucket plan: every sentence once, within the token budget and the shapes, with little
padding.
"""

import itertools

import ml_collections
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.sentences import caption_lengths
from transformer.data.batches import bucketing
from transformer.data.batches.bucketing import assign_buckets, choose_shapes
from transformer.data.batches.epoch_plan import Bucket


def batch_config(tokens=4096, max_buckets=12, row_multiple=8, length_multiple=1):
    keys = {"tokens": tokens, "max_buckets": max_buckets, "row_multiple": row_multiple}
    return ml_collections.FrozenConfigDict(keys | {"length_multiple": length_multiple})


def as_lengths(pairs):
    return np.array(pairs, np.int32).reshape(-1, 2)


@settings(max_examples=30)
@given(
    seed=st.integers(0, 1000),
    longest=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    count=st.integers(1, 600),
    max_buckets=st.integers(1, 12),
    row_multiple=st.integers(1, 8),
)
def test_every_sentence_once_within_budget_and_shapes(
    seed, longest, count, max_buckets, row_multiple
):
    lengths = 1 + np.random.default_rng(seed).integers(0, longest, (count, 2), np.int32)
    config = batch_config(tokens=320, max_buckets=max_buckets, row_multiple=row_multiple)
    buckets = choose_shapes(lengths, config)
    assert 1 <= len(set(buckets)) <= max_buckets
    for bucket in buckets:
        assert bucket.rows > 0 and bucket.rows % row_multiple == 0
        assert bucket.rows * max(bucket.source_length, bucket.target_length) <= 320
    lengths = lengths[: 1 + count // 2]  # other pairs than the buckets were chosen for
    for random in (np.random.default_rng(seed), None):
        plan = bucketing.plan_epoch(lengths, buckets, random)
        batches = [plan[number] for number in range(len(plan))]
        assert sorted(np.concatenate([batch.sentences for batch in batches])) == list(
            range(len(lengths))
        )
        for batch in batches:
            held = (batch.bucket.source_length, batch.bucket.target_length)
            assert batch.bucket in buckets and 0 < len(batch.sentences) <= batch.bucket.rows
            assert (lengths[batch.sentences] <= held).all()
        positions = sum(batch.bucket.positions for batch in batches)
        assert plan.padding_fraction == pytest.approx(1 - lengths.sum() / positions)


def test_a_remainder_goes_where_it_is_padded_less():
    buckets = (Bucket(10, 4, 4), Bucket(8, 6, 6))

    def batches_of(short, long, buckets=buckets):
        plan = bucketing.plan_epoch(as_lengths([(4, 4)] * short + [(6, 6)] * long), buckets, None)
        return [
            (plan[number].bucket.source_length, len(plan[number].sentences))
            for number in range(len(plan))
        ]

    # With 6 pairs the batch of 8 positions a row has 4 filler rows, 32 positions; moved up they are
    # padded by 6 x 4.
    assert batches_of(16, 8) == [(4, 10), (6, 8), (6, 6)]
    # With 8 pairs it is 2 filler rows, 16 positions, against 8 x 4.
    assert batches_of(18, 8) == [(4, 10), (4, 8), (6, 8)]
    assert batches_of(6, 0) == [(4, 6)]  # the bucket above has no batch to join
    assert batches_of(2, 1, (*buckets, Bucket(8, 8, 8))) == [(6, 3)]


def cheapest_chain(sizes, counts, most, bucket_cost):
    """The least cost over every subset of at most `most` sizes that has the last one."""
    costs = []
    for number in range(most):
        for below in itertools.combinations(range(len(sizes) - 1), number):
            chain = [*below, len(sizes) - 1]
            held = np.diff(np.cumsum(counts)[chain], prepend=0)
            costs.append((held * sizes[chain].sum(axis=1) + bucket_cost).sum())
    return min(costs)


@given(
    sides=st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 5), st.integers(0, 9)), min_size=1, max_size=7
    ),
    most=st.integers(1, 4),
    bucket_cost=st.sampled_from([0.5, 40.0]),
)
def test_the_chosen_chain_is_the_cheapest(sides, most, bucket_cost):
    steps = np.array(sides)
    sizes, counts = 1 + np.cumsum(steps[:, :2], axis=0), steps[:, 2]
    chain = bucketing._least_padded_chain(sizes, counts, most, bucket_cost)
    held = np.diff(np.cumsum(counts)[chain], prepend=0)
    assert len(chain) <= most and chain[-1] == len(sizes) - 1
    cost = (held * sizes[chain].sum(axis=1) + bucket_cost).sum()
    assert cost == pytest.approx(cheapest_chain(sizes, counts, most, bucket_cost))


def test_a_pair_goes_to_the_first_bucket_that_holds_it():
    lengths = as_lengths([(4, 4), (1, 5), (5, 1), (4, 9), (10, 1)])
    assert assign_buckets(lengths, np.array([(4, 4), (4, 8), (9, 9)])).tolist() == [0, 1, 2, 2, 3]


@pytest.mark.parametrize("tokens, most", [(4096, 0.105), (25_000, 0.105)])
def test_padding_on_captions(multi30k, tokens, most):
    lengths = caption_lengths(multi30k)
    buckets = choose_shapes(lengths, batch_config(tokens=tokens))
    assert bucketing.plan_epoch(lengths, buckets, np.random.default_rng(1)).padding_fraction <= most


def test_batches_are_random_sentences_of_their_bucket_in_random_order():
    lengths = as_lengths([(5, 5)] * 800 + [(20, 20)] * 800)
    buckets = choose_shapes(lengths, batch_config(tokens=320, row_multiple=1))
    plan = bucketing.plan_epoch(lengths, buckets, np.random.default_rng(0))
    batches = [plan[number] for number in range(len(plan))]
    # 800 in 13 batches: 62
    assert {(bucket.source_length, bucket.rows) for bucket in buckets} == {(5, 62), (20, 16)}
    long_ones = [number for number, batch in enumerate(batches) if batch.bucket.source_length == 20]
    assert min(long_ones) < 13 and np.std(np.diff(long_ones)) > 0
    for batch in batches:
        # the spread of a uniform draw from 800 neighbours is 800 / sqrt(12) = 231
        if len(batch.sentences) > 12:
            assert 100 < np.std(batch.sentences) < 350


def test_lengths_are_multiples():
    lengths = np.random.default_rng(0).integers(1, 61, (2000, 2)).astype(np.int32)
    buckets = choose_shapes(
        np.append(lengths, as_lengths([(3, 70)]), axis=0), batch_config(length_multiple=8)
    )
    sizes = np.array([(bucket.source_length, bucket.target_length) for bucket in buckets])
    assert (sizes % 8 == 0).all() and sizes[-1].tolist() == [64, 72] and len(buckets) > 4
    assert (assign_buckets(lengths, sizes) < len(sizes)).all()
