"""Waiting for other processes, as long as they make progress: file locks, and polling."""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import IO

from absl import logging

from transformer.support.errors import UserError

FIRST_WARNING = 10  # seconds of waiting before the first log line
WARNING_INTERVAL = 60  # seconds between later ones
_listeners: list[Callable[[], object]] = []


@contextlib.contextmanager
def progress_reported_to(listener: Callable[[], object]) -> Iterator[None]:
    """Calls the listener during the block whenever this process makes progress, or sees another one
    do so.
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def report_progress() -> None:
    """Extends the wait of the processes that wait for this one."""
    for listener in list(_listeners):
        listener()


def poll_until(
    what: str, advice: str, seconds: int, progress: Callable[[], Hashable]
) -> Iterator[None]:
    """Yields before each attempt of a polling loop.

    Raises UserError if `progress()` does not change for `seconds`.
    """
    started = changed = time.monotonic()
    next_warning = FIRST_WARNING
    seen = progress()
    while True:
        yield
        now = time.monotonic()
        if (latest := progress()) != seen:
            seen = latest
            changed = now
            report_progress()
        idle = now - changed
        if idle > seconds:
            raise UserError(f"waited {idle:.0f} s for {what}; {advice}")
        if now - started > next_warning:
            next_warning = now - started + WARNING_INTERVAL
            logging.warning(
                "Waiting for %s: %.0f s, %.0f of at most %d s without progress.",
                what,
                now - started,
                idle,
                seconds,
            )


def try_lock(file: IO[str]) -> bool:
    """Locks a file until it is closed, unless another process has.

    Raises UserError if the file system has no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise UserError(
            f"{file.name}: cannot be locked ({error.strerror}); name a folder on another disk"
        ) from error
    return True


@contextlib.contextmanager
def exclusive(lock: Path, holder: str, advice: str, seconds: int) -> Iterator[IO[str]]:
    """Locks a file and yields it.

    Raises UserError if its holder makes no progress for `seconds`.
    """
    with lock.open("a") as file:
        for _ in poll_until(
            f"{holder} ({lock})", advice, seconds, lambda: os.fstat(file.fileno()).st_mtime_ns
        ):
            if try_lock(file):
                break
            time.sleep(0.1)
        with progress_reported_to(lambda: os.utime(file.fileno())):
            yield file
