"""Streams that threads read: order of the items, errors, and the end of all threads."""

import threading
import time

import numpy as np
import pytest

from transformer.threads import merge


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
