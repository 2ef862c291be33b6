"""The loader: every epoch's batches in order, from any start, prepared in the background."""

import itertools
import threading
import time

import numpy as np
import pytest

from configs import base
from tests.data.sentences import MemorySentences, random_sentences
from tests.meshes import one_device
from transformer.data.batches import loader
from transformer.data.batches.collation import assemble_batch, place_batch
from transformer.data.batches.loader import DataPosition, Loader
from transformer.support.errors import UserError


def small_config(**batch):
    config = base.get_config()
    config.data.max_length = 16
    sizes = {
        "tokens": 128,
        "max_buckets": 4,
        "row_multiple": 2,
        "length_multiple": 1,
        "packed_length": 32,
    }
    config.batch.update(sizes | batch)
    return config


def plan_in_order(corpus, config):
    (plan,) = loader.plan_in_order([(corpus, np.arange(len(corpus.lengths)))], config)
    return plan


def open_loader(sentences, config, start):
    return Loader(sentences, config, start, one_device())


def taken(batches, count):
    """Returns the next `count` batches in a form that can be compared."""
    return [
        (after, {name: array.tolist() for name, array in arrays.items()}, stats)
        for after, arrays, stats in itertools.islice(batches, count)
    ]


@pytest.mark.parametrize("plan", ["buckets", "packed"])
@pytest.mark.parametrize("prefetch", [1, 3])
def test_a_resumed_loader_continues_with_the_same_batches(plan, prefetch):
    sentences, config = random_sentences(120, longest=12), small_config(plan=plan)
    config.data.prefetch = prefetch
    with open_loader(sentences, config, DataPosition(0, 0)) as batches:
        count = len(batches.epoch_plan)
        straight = taken(batches, 3 * count)
    assert [after for after, _, _ in straight[count - 2 : count + 1]] == [
        DataPosition(0, count - 1),
        DataPosition(1, 0),
        DataPosition(1, 1),
    ]
    for done in (1, count - 1, count, count + 2, 2 * count + 1):
        with open_loader(sentences, config, straight[done - 1][0]) as resumed:
            assert taken(resumed, 3 * count - done) == straight[done:]


@pytest.mark.parametrize("plan", ["buckets", "packed"])
def test_an_order_is_a_function_of_seed_epoch_and_rollbacks(plan):
    sentences, config = random_sentences(120, longest=12), small_config(plan=plan)

    def order(seed, epoch, num_rollbacks):
        config.seed = seed
        with open_loader(sentences, config, DataPosition(epoch, 0, num_rollbacks)) as batches:
            return str(
                [
                    batches.epoch_plan[number].sentences.tolist()
                    for number in range(len(batches.epoch_plan))
                ]
            )

    assert order(0, 0, 0) == order(0, 0, 0)
    assert len({order(0, 0, 0), order(1, 0, 0), order(0, 1, 0), order(0, 0, 1)}) == 4


@pytest.mark.parametrize("plan", ["buckets", "packed"])
def test_a_late_start_reads_as_little_as_an_early_one(plan):
    class Counting(MemorySentences):
        def __init__(self, pairs):
            super().__init__(pairs)
            self.made, self.epochs = [], set()

        def tokens(self, side, pairs):
            self.made.append(len(pairs))
            return super().tokens(side, pairs)

        def epoch(self, epoch, seed):
            self.epochs.add(epoch)
            return super().epoch(epoch, seed)

    config = small_config(plan=plan)
    config.data.prefetch = 1
    for start in (DataPosition(0, 3), DataPosition(100_000, 3)):
        sentences = Counting(random_sentences(120, longest=12).pairs)
        with open_loader(sentences, config, start) as batches:
            _, _, stats = next(batches)
        # Both sides of that batch, and of the one ahead.
        assert sentences.made.count(stats.sentences) >= 2 and len(sentences.made) <= 4
        assert start.epoch in sentences.epochs and sentences.epochs <= {
            start.epoch,
            start.epoch + 1,
        }


@pytest.mark.parametrize("plan", ["buckets", "packed"])
def test_an_epoch_holds_every_sentence_once(plan):
    sentences, config = random_sentences(150, longest=12), small_config(plan=plan)
    for epoch in (0, 7):
        with open_loader(sentences, config, DataPosition(epoch, 0)) as batches:
            parts = list(itertools.islice(batches, len(batches.epoch_plan)))
            shapes = {
                (arrays["source"].shape, arrays["target_input"].shape) for _, arrays, _ in parts
            }
            assert len(shapes) <= len(batches.buckets) <= (4 if plan == "buckets" else 1)
        tokens = np.concatenate([np.ravel(arrays["source"]) for _, arrays, _ in parts])
        assert sorted(tokens[tokens > 3]) == sorted(
            np.concatenate([source for source, _ in sentences.pairs])
        )
        assert sum(stats.sentences for _, _, stats in parts) == np.count_nonzero(tokens == 3) == 150
        assert sum(stats.source_tokens for _, _, stats in parts) == sentences.lengths[:, 0].sum()
        assert sum(stats.target_tokens for _, _, stats in parts) == sentences.lengths[:, 1].sum()
        for _, arrays, stats in parts:
            assert stats.positions == arrays["source"].size + arrays["target_input"].size


def test_batches_are_prepared_ahead_and_waiting_is_measured():
    class Slow(MemorySentences):
        def tokens(self, side, pairs):
            time.sleep(0.05)  # for each side of a batch
            return super().tokens(side, pairs)

    slow, config = Slow(random_sentences(120, longest=12).pairs), small_config()
    config.data.prefetch = 4
    with open_loader(slow, config, DataPosition(0, 0)) as batches:
        next(batches)
        assert batches.data_wait_seconds > 0.05
        time.sleep(1.2)
        before = batches.data_wait_seconds
        taken(batches, 3)
        # of at least 0.3 seconds that preparing them took
        assert batches.data_wait_seconds - before < 0.1


def test_background_errors_reach_the_caller():
    class Broken(MemorySentences):
        def tokens(self, side, pairs):
            raise UserError("data: the disk is gone")

    class BrokenNextEpoch(MemorySentences):
        def epoch(self, epoch, seed):
            if epoch == 1:
                raise UserError("data: the disk is full")
            return super().epoch(epoch, seed)

    pairs = random_sentences(40, longest=12).pairs
    with (
        open_loader(Broken(pairs), small_config(), DataPosition(0, 0)) as batches,
        pytest.raises(UserError, match="is gone"),
    ):
        next(batches)
    with open_loader(BrokenNextEpoch(pairs), small_config(), DataPosition(0, 0)) as batches:
        assert len(batches.epoch_plan) > 4
        with pytest.raises(UserError, match="is full"):
            taken(batches, len(batches.epoch_plan) + 1)


def test_closing_waits_for_the_batches_that_have_begun():
    begun, ended = [], []

    class Slow(MemorySentences):
        def tokens(self, side, pairs):
            begun.append(side)
            time.sleep(0.1)
            ended.append(side)
            return super().tokens(side, pairs)

    with open_loader(
        Slow(random_sentences(120, longest=12).pairs), small_config(), DataPosition(0, 0)
    ) as batches:
        taken(batches, 2)
        time.sleep(0.05)  # the batch ahead begins
    assert len(begun) == len(ended) > 2


def test_closing_leaves_no_thread_that_delays_the_exit():
    encoded = threading.Event()

    class Slow(MemorySentences):
        def epoch(self, epoch, seed):
            if epoch == 1:
                encoded.wait(60)
            return super().epoch(epoch, seed)

    sentences = random_sentences(40, longest=12)
    before = set(threading.enumerate())
    with open_loader(Slow(sentences.pairs), small_config(), DataPosition(0, 0)) as batches:
        next(batches)
        began = time.perf_counter()
    assert time.perf_counter() - began < 5
    alive = set(threading.enumerate()) - before
    assert alive and all(thread.daemon for thread in alive)
    encoded.set()


def held_out(corpus, config):
    """Returns the arrays of the batches of a held-out corpus."""
    return [
        place_batch(assemble_batch(corpus, batch), one_device())
        for batch in plan_in_order(corpus, config)
    ]


def test_held_out_pairs_beyond_max_length_are_left_out():
    short, config = random_sentences(100, longest=12), small_config()
    long = [(np.full(500, 9), np.full(4, 9)), (np.full(4, 9), np.full(config.data.max_length, 9))]
    expected = held_out(short, config)
    # The first pair is long, so that the numbers of all others differ.
    batches = held_out(MemorySentences([long[0], *short.pairs, long[1]]), config)
    for arrays, expected_arrays in zip(batches, expected, strict=True):
        assert all(np.array_equal(array, expected_arrays[name]) for name, array in arrays.items())
        assert all(array.size <= config.batch.tokens for array in arrays.values())


def test_held_out_batches_have_at_most_four_shapes_with_little_padding():
    sizes = np.random.default_rng(0).integers(1, 99, 2000)
    config = small_config(tokens=1024, max_buckets=12)
    config.data.max_length = 100
    plan = plan_in_order(MemorySentences([(np.full(size, 9),) * 2 for size in sizes]), config)
    batches = [plan[number] for number in range(len(plan))]
    assert len({batch.bucket for batch in batches}) <= 4
    for batch in batches:
        assert len(batch.sentences) <= batch.bucket.rows
        assert sizes[batch.sentences].max() < min(
            batch.bucket.source_length, batch.bucket.target_length
        )
    # Four equal intervals pad lengths uniform up to L to 5 L / 8, whose mean is L / 2. Filler rows
    # come on top.
    assert sum(batch.bucket.positions for batch in batches) < 1.3 * 2 * (sizes + 1).sum()


def test_held_out_sentences_appear_once_and_in_order():
    sentences = random_sentences(100, longest=12)
    sources = []
    for arrays in held_out(sentences, small_config(plan="packed")):
        assert set(arrays) == {"source", "target_input", "target_output"}
        sources += [row[row > 3].tolist() for row in np.asarray(arrays["source"]) if row.any()]
    wanted = [source.tolist() for source, _ in sentences.pairs]
    assert sorted(sources) == sorted(wanted)
    positions = [wanted.index(source) for source in sources if source]
    assert np.count_nonzero(np.diff(positions) < 0) < 8  # in order within each bucket
