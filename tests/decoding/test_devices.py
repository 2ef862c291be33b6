"""Queues of batches on several devices: the results of one device, order of finishing, errors, and programs."""

import json
import threading
import time

import numpy as np
import pytest

from tests.distributed.test_mesh import run_on_eight_devices
from transformer.threads import merge


@pytest.fixture(scope="module")
def report() -> dict:
    return run_on_eight_devices("decoding_devices")


@pytest.mark.parametrize("strategy", ["beam", "sample", "bfloat16"])
def test_eight_devices_give_the_translations_of_one_byte_for_byte(report, strategy):
    one, eight = report[strategy]["one"], report[strategy]["eight"]
    assert eight["translations"] == one["translations"]
    assert eight["devices"] == 8 and one["devices"] == 1
    assert len({json.dumps(translation) for translation in one["translations"]}) > 10


def test_scores_and_states_do_not_depend_on_the_devices(report):
    assert report["scores"]["one"] == report["scores"]["eight"]
    assert report["states"]["one"] == report["states"]["eight"]


def test_each_shape_is_lowered_once_and_single_texts_compile_on_the_first_device_only(report):
    assert report["beam"]["eight"]["lowered"] == report["beam"]["eight"]["shapes"] > 1
    assert report["single_texts"] == [0]


def test_a_slow_stream_delays_no_other():
    slow_may_end = threading.Event()

    def slow():
        assert slow_may_end.wait(60)
        yield "slow"

    merged = merge([slow(), iter(range(20))])
    assert [next(merged) for _ in range(20)] == list(range(20))
    slow_may_end.set()
    assert list(merged) == ["slow"]


def test_an_error_in_one_stream_ends_the_others():
    taken = []

    def endless():
        for number in iter(int, 1):
            time.sleep(0.001)
            taken.append(number)
            yield number

    def broken():
        yield "item"
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        list(merge([endless(), broken(), endless()]))
    count = len(taken)
    time.sleep(0.05)
    assert len(taken) == count


def test_closing_ends_all_streams():
    threads = threading.active_count()
    merged = merge([iter(np.arange(1000)) for _ in range(3)])
    next(merged)
    merged.close()
    assert threading.active_count() == threads
