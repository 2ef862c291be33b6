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

# Seconds of waiting before the first log line, and between later ones.
FIRST_WARNING = 10
WARNING_INTERVAL = 60
# Functions that pass progress on to waiting processes.
_listeners: list[Callable[[], object]] = []


@contextlib.contextmanager
def progress_reported_to(listener: Callable[[], object]) -> Iterator[None]:
    """Calls the listener during the block whenever this process makes progress.

    Progress of a process that this one waits for counts too.
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def report_progress() -> None:
    """Extends the wait of the processes that wait for this one."""
    # A copy, since a listener of another thread may be removed meanwhile.
    for listener in list(_listeners):
        listener()


def poll_until(
    what: str, advice: str, seconds: int, progress: Callable[[], Hashable]
) -> Iterator[None]:
    """Yields before each attempt of a polling loop.

    Raises UserError if `progress()` does not change for `seconds`.
    """
    started = changed = time.monotonic()
    next_warning: float = FIRST_WARNING
    previous = progress()
    while True:
        yield
        now = time.monotonic()
        latest = progress()
        if latest != previous:
            previous = latest
            changed = now
            # Others may wait for this process, and thus for the one that has made progress.
            report_progress()
        waited = now - started
        idle = now - changed
        if idle > seconds:
            raise UserError(f"waited {idle:.0f} s for {what}; {advice}")
        if waited > next_warning:
            next_warning = waited + WARNING_INTERVAL
            logging.warning(
                "Waiting for %s: %.0f s, %.0f of at most %d s without progress.",
                what,
                waited,
                idle,
                seconds,
            )


def try_lock(file: IO[str]) -> bool:
    """Locks a file until it is closed, and returns False if another process has locked it.

    The kernel unlocks the files of a process that dies. Raises UserError if the file system has no
    locks.
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

    Its time of change tells other processes that the holder makes progress. Raises UserError if the
    holder makes none for `seconds`.
    """
    with lock.open("a") as file:
        for _ in poll_until(
            f"{holder} ({lock})", advice, seconds, lambda: os.fstat(file.fileno()).st_mtime_ns
        ):
            # Polling instead of waiting in the kernel, so that the wait can end with a message.
            if try_lock(file):
                break
            time.sleep(0.1)
        with progress_reported_to(lambda: os.utime(file.fileno())):
            yield file
