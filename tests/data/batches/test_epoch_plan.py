"""Plans in files: made once, mapped by all processes, deleted when no process can need them."""

import threading

import numpy as np
import pytest

from tests.data.sentences import random_sentences
from transformer.data.batches import bucketing, packing
from transformer.data.batches.epoch_plan import Bucket, EpochPlan, load_or_make

LENGTHS = random_sentences(60, longest=12).lengths


def make(module=packing) -> EpochPlan:
    return module.plan_epoch(LENGTHS, (Bucket(4, 16, 16),), np.random.default_rng(0))


@pytest.mark.parametrize("module", [bucketing, packing])
def test_a_plan_is_mapped_into_memory_unchanged(tmp_path, module):
    made = make(module)
    mapped = load_or_make(tmp_path / "plans", lambda: made, 3, "key", 0)
    assert mapped.stats == made.stats and mapped.padding_fraction == made.padding_fraction
    for name, array in vars(made).items():
        if isinstance(array, np.ndarray):
            loaded = getattr(mapped, name)
            assert loaded.dtype == array.dtype and np.array_equal(loaded, array)
            assert isinstance(loaded.base, np.memmap) and not loaded.flags.writeable
    assert (mapped.rows is None) == (made.rows is None)
    assert mapped.tokens.sum() == LENGTHS.sum()


def test_of_several_that_ask_for_a_plan_one_makes_it(tmp_path):
    made = []

    def ask() -> None:
        load_or_make(tmp_path / "plans", lambda: made.append(1) or make(), 0, "key", 60)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]
    load_or_make(tmp_path / "plans", lambda: made.append(1) or make(), 0, "another", 0)
    assert made == [1, 1]


def test_plans_of_earlier_epochs_are_deleted_but_stay_readable(tmp_path):
    first = load_or_make(tmp_path / "plans", make, 8, "key", 0)
    for epoch in (9, 10, 11):
        load_or_make(tmp_path / "plans", make, epoch, "key", 0)
    assert sorted(path.name for path in (tmp_path / "plans").glob("*-*")) == ["10-key", "11-key", "9-key"]
    assert np.array_equal(first.sentences, make().sentences)


def test_an_interrupted_plan_is_made_again(tmp_path):
    def fail() -> EpochPlan:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_or_make(tmp_path / "plans", fail, 0, "key", 0)
    assert len(load_or_make(tmp_path / "plans", make, 0, "key", 0)) == len(make())
