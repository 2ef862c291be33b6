"""No example goes on for ever."""

import contextlib
import functools
import signal
from collections.abc import Iterator
from typing import NoReturn

import pytest

SECONDS = 60  # for one example, of which the first may have to compile


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    """Fails what is still in the block by then; what it raises there no code takes for an error of its own."""

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
    """Each example has its time, so that Hypothesis names the one that hangs; a test without examples is one itself."""
    if handle := getattr(request.function, "hypothesis", None):
        monkeypatch.setattr(handle, "inner_test", functools.wraps(handle.inner_test)(in_time()(handle.inner_test)))
        yield
    else:
        with in_time():
            yield
