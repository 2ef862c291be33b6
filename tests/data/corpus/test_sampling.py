"""Subword sampling in batches: functions of seed, epoch and sentence, within the lengths that plans
reserve.
"""

import itertools
import threading

import numpy as np
import pytest

from tests.data.files import text_config, write_pairs
from tests.meshes import one_device
from transformer.data.batches.loader import DataPosition, Loader
from transformer.data.corpus import corpus
from transformer.data.corpus import epoch as epochs
from transformer.data.corpus.epoch import mix
from transformer.data.tokenizers import tokenizer
from transformer.support.special_tokens import EOS

PAIRS = [
    (f"number {number} of a few", f"Zahl {number} von einigen wenigen") for number in range(300)
]


@pytest.fixture
def config(tmp_path):
    write_pairs(tmp_path, "train", PAIRS)
    (tmp_path / "workdir").mkdir()
    config = text_config(tmp_path, tmp_path / "cache")
    config.tokenizer.update({"vocab_size": 60, "subword_sampling": 0.1})
    config.data.max_length = 64
    config.batch.update(
        {"tokens": 256, "row_multiple": 2, "length_multiple": 1, "packed_length": 64}
    )
    return config


@pytest.fixture
def made(config, tmp_path):
    return tokenizer.prepare(config, tmp_path / "workdir")


def drawn(epoch, side, pairs):
    tokens, lengths = epoch.sequences(side, np.array(pairs))
    return [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])]


def test_samples_are_functions_of_seed_epoch_side_and_sentence(config, made):
    train, pairs = corpus.prepare(config, made, "train"), list(range(300))
    first = drawn(train.epoch(1, 5), 0, pairs)
    assert made.source.decode([tokens[:-1] for tokens in first]) == [source for source, _ in PAIRS]
    assert all(tokens[-1] == EOS for tokens in first)
    again, shuffled = (
        corpus.prepare(config, made, "train").epoch(1, 5),
        np.random.default_rng(0).permutation(300),
    )
    assert drawn(again, 0, shuffled) == [first[index] for index in shuffled]
    for epoch in (train.epoch(2, 5), train.epoch(1, 6)):
        assert sum(a != b for a, b in zip(first, drawn(epoch, 0, pairs), strict=True)) > 200
    samples = [None] * 3
    threads = [
        threading.Thread(target=lambda i=i: samples.__setitem__(i, drawn(again, 0, pairs)))
        for i in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert samples == [first] * 3


def test_equal_sentences_are_sampled_independently(config, made, tmp_path):
    write_pairs(tmp_path, "train", [("number of a few", "Zahl von einigen wenigen")] * 50)
    epoch = corpus.prepare(config, made, "train").epoch(0, 0)
    assert len(set(map(str, drawn(epoch, 1, range(50))))) > 10


@pytest.mark.parametrize("margin", [-100.0, 1.0, 100.0])
def test_samples_fit_the_plan(config, made, monkeypatch, margin):
    monkeypatch.setattr(epochs, "MARGIN", margin)
    train = corpus.prepare(config, made, "train")
    epoch, best = train.epoch(0, 0), made.target.encode([target for _, target in PAIRS])
    assert (train.lengths <= epoch.lengths).all() and epoch.lengths.max() <= config.data.max_length
    sequences = drawn(epoch, 1, range(300))
    lengths = np.array([len(tokens) for tokens in sequences])
    assert (lengths <= epoch.lengths[:, 1]).all()
    if margin < 0:  # only samples of the fewest tokens fit
        assert lengths.tolist() == [len(tokens) + 1 for tokens in best]
    else:
        assert lengths.mean() > 1.1 * train.lengths[:, 1].mean()


def test_a_sample_that_does_not_fit_is_drawn_again(config, made):
    train, pairs = corpus.prepare(config, made, "train"), np.arange(300)
    free = train.sampler(0, pairs, np.full(300, 1000), 5, 1)[1]
    epoch = train.epoch(1, 5)
    lengths = epoch.sequences(0, pairs)[1]
    fit = free <= epoch.lengths[:, 0]
    # one standard deviation above the mean: 0.84 in a normal distribution
    assert 0.7 < fit.mean() < 0.99
    assert (lengths[fit] == free[fit]).all()
    assert (
        0.9
        < np.mean(lengths[~fit] / train.lengths[~fit, 0])
        < np.mean(free[~fit] / train.lengths[~fit, 0])
    )


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["buckets", "packed"])
def test_a_resumed_loader_continues_with_the_same_samples(config, made, plan):
    config.batch.plan, processes = plan, iter((1, 2, 3))

    def batches(start, count):
        train, config.data.workers = corpus.prepare(config, made, "train"), next(processes)
        with Loader(train, config, start, one_device()) as loader:
            return [
                (after, {name: np.asarray(array).tolist() for name, array in arrays.items()}, stats)
                for after, arrays, stats in itertools.islice(loader, count)
            ]

    straight = batches(DataPosition(0, 0), 80)
    assert straight[-1][0].epoch >= 1
    for done in (1, 40):
        assert batches(straight[done - 1][0], 80 - done) == straight[done:]
    for _, arrays, stats in straight:
        assert np.count_nonzero(arrays["source"]) == stats.source_tokens
        assert np.count_nonzero(arrays["target_output"]) == stats.target_tokens


def test_no_array_of_a_corpus_or_epoch_is_in_private_memory(config, made):
    train = corpus.prepare(config, made, "train")
    for owner in (train, train.epoch(0, 0), train.sampler):
        arrays = [array for array in vars(owner).values() if isinstance(array, np.ndarray)]
        assert all(isinstance(array, np.memmap) for array in arrays)
    assert max(map(len, train.sampler.reserved_lengths)) == train.lengths.max() + 1


def test_a_side_that_pairs_do_not_have_stays_empty(config, tmp_path):
    config.data.target_language = ""
    train = corpus.prepare(config, tokenizer.prepare(config, tmp_path / "workdir"), "train")
    assert (
        train.epoch(0, 0).lengths.min(axis=0).tolist()[1]
        == train.epoch(0, 0).lengths[:, 1].max()
        == 0
    )


def test_one_value_is_hashed_as_in_the_reference_implementation():
    assert mix(0).tolist() == [0xE220A8397B1DCDAF]  # first output of SplitMix64 with seed 0


def test_arrays_are_hashed_elementwise_and_the_order_of_values_matters():
    many = mix(3, np.arange(1000))
    assert many[7] == mix(3, 7)[0] != mix(7, 3)[0]
    assert len(set(many.tolist())) == 1000
