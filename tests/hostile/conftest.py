"""A time limit for every example."""

import contextlib
import functools
import signal
from collections.abc import Iterator
from typing import NoReturn

import pytest

SECONDS = 60  # per example; the first one may compile


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    """Fails the test if the block takes longer than SECONDS.

    `pytest.fail` raises a BaseException, so the code under test cannot catch it.
    """

    def stop(*_) -> NoReturn:
        pytest.fail(f"no end after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def bounded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Applies the limit to each Hypothesis example, so that a hang is reported with its input, or
    to the whole test.
    """
    if handle := getattr(request.function, "hypothesis", None):
        monkeypatch.setattr(
            handle, "inner_test", functools.wraps(handle.inner_test)(in_time()(handle.inner_test))
        )
        yield
    else:
        with in_time():
            yield
