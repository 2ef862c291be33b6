"""Batches of sequences, and the devices that share them: the results of one device, and the
programs compiled.
"""

import json

import numpy as np
import pytest

from tests.distributed.test_mesh import run_on_eight_devices
from transformer.decoding.batches import make_decoding_batches, padded_lengths


@pytest.fixture(scope="module")
def report() -> dict:
    return run_on_eight_devices("decoding_devices")


@pytest.mark.slow
@pytest.mark.parametrize(("case", "count"), [("beam", 3), ("sample", 2), ("bfloat16", 2)])
def test_several_devices_give_the_translations_of_one_byte_for_byte(report, case, count):
    one, several = report[case]["one"], report[case]["several"]
    assert several["translations"] == one["translations"]
    assert several["devices"] == count and one["devices"] == 1
    assert len({json.dumps(translation) for translation in one["translations"]}) > 10


@pytest.mark.slow
def test_scores_and_states_do_not_depend_on_the_devices(report):
    assert report["scores"]["one"] == report["scores"]["several"]
    assert report["states"]["one"] == report["states"]["several"]


@pytest.mark.slow
def test_each_shape_is_lowered_once_and_single_texts_compile_on_the_first_device_only(report):
    assert report["beam"]["several"]["lowered"] == report["beam"]["several"]["shapes"] > 1
    assert report["single_texts"] == [0]


@pytest.mark.parametrize("shortest, most", [(16, 5), (64, 3)])
@pytest.mark.parametrize("longest", [1, 2, 15, 16, 17, 100, 256])
def test_batches_hold_every_sequence_once_within_the_budget(longest, shortest, most):
    lengths = dict(enumerate(np.random.default_rng(longest).integers(1, longest + 1, 300).tolist()))
    batches = make_decoding_batches(
        lengths, longest, 512, shortest, positions=lambda length: length + 10
    )
    assert sorted(i for batch in batches for i in batch.indices) == list(lengths)
    for batch in batches:
        assert batch.length in padded_lengths(longest, shortest)
        assert max(lengths[i] for i in batch.indices) <= batch.length
        assert len(batch.indices) <= batch.rows
        assert batch.rows == 1 or batch.rows * (batch.length + 10) <= 512
    assert (
        len({(batch.rows, batch.length) for batch in batches})
        <= len(padded_lengths(longest, shortest))
        <= most
    )
