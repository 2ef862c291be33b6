"""The packed plan: every sentence once, within its row on both sides, with little padding."""

import ml_collections
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.sentences import caption_lengths, random_sentences
from transformer.data.batches import packing
from transformer.data.batches.epoch_plan import Bucket
from transformer.errors import UserError


def row_shape(tokens, packed_length, row_multiple):
    batch = {"tokens": tokens, "packed_length": packed_length, "row_multiple": row_multiple}
    (bucket,) = packing.choose_shapes(random_sentences(1, longest=2), ml_collections.FrozenConfigDict({"batch": batch}))
    return bucket


@settings(max_examples=30)
@given(
    seed=st.integers(0, 1000),
    longest=st.tuples(st.integers(1, 32), st.integers(1, 32)),
    count=st.integers(1, 400),
    chunk=st.sampled_from([7, 50, 8192]),
)
def test_every_sentence_once_in_rows_that_hold_it(seed, longest, count, chunk):
    lengths = 1 + np.random.default_rng(seed).integers(0, longest, (count, 2), np.int32)
    bucket = row_shape(tokens=130, packed_length=32, row_multiple=2)
    assert bucket == Bucket(4, 32, 32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "CHUNK", chunk)
        plan = packing.plan_epoch(lengths, (bucket,), seed, epoch=1)
    batches = [plan[number] for number in range(len(plan))]
    assert sorted(np.concatenate([batch.sentences for batch in batches])) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch.sentences) and (np.diff(batch.rows) >= 0).all() and batch.rows.max() < bucket.rows
        filled = np.zeros((bucket.rows, 2), int)
        np.add.at(filled, batch.rows, lengths[batch.sentences])
        assert filled.max() <= 32
    assert plan.padding_fraction == pytest.approx(1 - lengths.sum() / (len(batches) * 4 * 64))


# Multi30k once is too small for the base config's batches of 96 rows of 256. Its 476,047 target tokens need at least
# 1,860 rows, which are 19.4 batches, so there are 20. They hold 455,364 source tokens too: the padding is at least
# 1 - 931,411 / (20 x 96 x 512) = 5.25 %, which the plan reaches.
@pytest.mark.parametrize("tokens, packed_length, times", [(4096, 256, 1), (8192, 512, 1), (25_000, 256, 4)])
def test_padding_on_captions(multi30k, tokens, packed_length, times):
    lengths = np.tile(caption_lengths(multi30k), (times, 1))
    plan = packing.plan_epoch(lengths, (row_shape(tokens, packed_length, row_multiple=8),), seed=1, epoch=0)
    assert plan.padding_fraction < 0.05


def test_a_plan_is_a_function_of_seed_and_epoch():
    lengths = np.random.default_rng(0).integers(1, 30, (500, 2), np.int32)

    def rows(seed, epoch):
        plan = packing.plan_epoch(lengths, (Bucket(4, 64, 64),), seed, epoch)
        return [(batch.sentences.tolist(), batch.rows.tolist()) for batch in map(plan.__getitem__, range(len(plan)))]

    assert rows(1, 2) == rows(1, 2)
    assert rows(1, 2) != rows(1, 3) and rows(1, 2) != rows(2, 2)


def test_a_row_too_short_or_too_long_and_an_empty_corpus_are_user_errors():
    with pytest.raises(UserError, match="batch.tokens=100.*raise batch.tokens to 256"):
        row_shape(tokens=100, packed_length=32, row_multiple=8)
    with pytest.raises(UserError, match="batch.packed_length=32: the longest sentence has 33 tokens"):
        packing.plan_epoch(np.array([[3, 33]], np.int32), (Bucket(8, 32, 32),), seed=0, epoch=0)
    with pytest.raises(UserError, match="no sentence pair"):
        packing.plan_epoch(np.empty((0, 2), np.int32), (Bucket(8, 32, 32),), seed=0, epoch=0)
