"""The batch plan: every sentence once, within budget and shapes, little padding; and the arrays of a batch."""

import ml_collections
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.sentences import MemorySentences, caption_lengths
from transformer.data.batches import bucketing as batching
from transformer.data.batches.buckets import Bucket, assign, choose_buckets, close
from transformer.data.batches.collation import assemble
from transformer.errors import UserError


def batch_config(tokens=4096, max_buckets=12, row_multiple=8):
    return ml_collections.FrozenConfigDict({"tokens": tokens, "max_buckets": max_buckets, "row_multiple": row_multiple})


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
def test_every_sentence_once_within_budget_and_shapes(seed, longest, count, max_buckets, row_multiple):
    lengths = 1 + np.random.default_rng(seed).integers(0, longest, (count, 2), np.int32)
    config = batch_config(tokens=320, max_buckets=max_buckets, row_multiple=row_multiple)
    buckets = choose_buckets(lengths, config)
    assert 1 <= len(set(buckets)) <= max_buckets
    for bucket in buckets:
        assert bucket.rows > 0 and bucket.rows % row_multiple == 0
        assert bucket.rows * max(bucket.source_length, bucket.target_length) <= 320
    lengths = lengths[: 1 + count // 2]  # an epoch that the buckets do not fit so well, as with subword sampling
    for plan in (batching.plan_epoch(lengths, buckets, seed, epoch=3), batching.plan_in_order(lengths, buckets)):
        batches = [plan[number] for number in range(len(plan))]
        assert sorted(np.concatenate([batch.sentences for batch in batches])) == list(range(len(lengths)))
        for batch in batches:
            held = (batch.bucket.source_length, batch.bucket.target_length)
            assert batch.bucket in buckets and 0 < len(batch.sentences) <= batch.bucket.rows
            assert (lengths[batch.sentences] <= held).all()
        positions = sum(batch.bucket.positions for batch in batches)
        assert plan.padding_fraction == pytest.approx(1 - lengths.sum() / positions)
        assert sum(use.sentences for use in plan.uses) == len(lengths)


def test_filling_is_the_best_choice_of_closed_buckets():
    buckets = [Bucket(4, 2, 2), Bucket(3, 3, 3), Bucket(2, 5, 5)]

    def positions_when(closed, counts):
        moved, positions = 0, 0
        for bucket, count, is_closed in zip(buckets, counts, closed, strict=True):
            full, moved = divmod(count + moved, bucket.rows)
            if is_closed and moved:
                full, moved = full + 1, 0
            positions += full * bucket.positions
        return positions

    for counts in ([5, 4, 3], [1, 1, 1], [0, 0, 1], [7, 0, 0], [3, 2, 2]):
        every = [(first, second, True) for first in (False, True) for second in (False, True)]
        assert positions_when(close(counts, buckets), counts) == min(positions_when(each, counts) for each in every)


def test_a_pair_goes_to_the_first_bucket_that_holds_it():
    buckets = (Bucket(8, 4, 4), Bucket(8, 4, 8), Bucket(8, 9, 9))
    lengths = as_lengths([(4, 4), (1, 5), (5, 1), (4, 9), (10, 1)])
    assert assign(lengths, buckets).tolist() == [0, 1, 2, 2, 3]
    with pytest.raises(UserError, match="1 sentence pairs are longer than the largest bucket"):
        batching.plan_epoch(lengths, buckets, seed=0, epoch=0)


@pytest.mark.parametrize("tokens, most", [(4096, 0.105), (25_000, 0.105)])
def test_padding_on_captions(multi30k, tokens, most):
    lengths = caption_lengths(multi30k)
    buckets = choose_buckets(lengths, batch_config(tokens=tokens))
    assert batching.plan_epoch(lengths, buckets, seed=1, epoch=0).padding_fraction <= most


def test_a_plan_is_a_function_of_seed_and_epoch():
    lengths = np.random.default_rng(0).integers(1, 60, (3000, 2), np.int32)
    buckets = choose_buckets(lengths, batch_config())

    def sentences(seed, epoch):
        plan = batching.plan_epoch(lengths, buckets, seed, epoch)
        return [plan[number].sentences.tolist() for number in range(len(plan))]

    assert sentences(1, 2) == sentences(1, 2)
    assert sentences(1, 2) != sentences(1, 3) and sentences(1, 2) != sentences(2, 2)


def test_batches_are_random_sentences_of_their_bucket_in_random_order():
    lengths = as_lengths([(5, 5)] * 800 + [(20, 20)] * 800)
    buckets = choose_buckets(lengths, batch_config(tokens=320, row_multiple=1))
    plan = batching.plan_epoch(lengths, buckets, seed=0, epoch=0)
    batches = [plan[number] for number in range(len(plan))]
    assert {(bucket.source_length, bucket.rows) for bucket in buckets} == {(5, 62), (20, 16)}  # 800 in 13 batches: 62
    long_ones = [number for number, batch in enumerate(batches) if batch.bucket.source_length == 20]
    assert min(long_ones) < 13 and np.std(np.diff(long_ones)) > 0
    for batch in batches:
        if len(batch.sentences) > 12:  # the spread of a uniform draw from 800 neighbours is 800 / sqrt(12) = 231
            assert 100 < np.std(batch.sentences) < 350


def test_long_sentences_and_empty_corpora_are_the_users_to_mend():
    with pytest.raises(UserError, match="batch.tokens=100.*raise batch.tokens to 160.*data.max_length to 12"):
        choose_buckets(as_lengths([(3, 20)]), batch_config(tokens=100))
    with pytest.raises(UserError, match="no sentence pair"):
        choose_buckets(as_lengths([]), batch_config())


def test_the_largest_bucket_holds_what_it_is_told_to():
    buckets = choose_buckets(as_lengths([(3, 4)] * 50), batch_config(), longest=(64, 64))
    assert (buckets[-1].source_length, buckets[-1].target_length) == (64, 64)
    plan = batching.plan_epoch(as_lengths([(3, 4)] * 49 + [(60, 9)]), buckets, seed=0, epoch=0)
    assert sum(len(plan[number].sentences) for number in range(len(plan))) == 50


def test_very_long_sentences_share_cells_and_still_fit():
    lengths = as_lengths([(3001, 17), (2999, 1700), (12, 1703), (5, 5)])
    buckets = choose_buckets(lengths, batch_config(tokens=30_000, row_multiple=1, max_buckets=4))
    assert (buckets[-1].source_length, buckets[-1].target_length) == (3001, 1703)
    assert len(batching.plan_in_order(lengths, buckets)) > 0


def test_arrays_of_a_batch():
    sentences = MemorySentences([([11, 12], [21]), ([], [22, 23, 24]), ([13], [])])
    batch = batching.Batch(Bucket(3, 4, 5), np.array([2, 0]), np.array([0, 1]))
    arrays = assemble(sentences, batch, packed=False)
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "source": [[13, 3, 0, 0], [11, 12, 3, 0], [0, 0, 0, 0]],
        "target_input": [[2, 0, 0, 0, 0], [2, 21, 0, 0, 0], [0, 0, 0, 0, 0]],
        "target_output": [[3, 0, 0, 0, 0], [21, 3, 0, 0, 0], [0, 0, 0, 0, 0]],
    }
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.int32)}
