"""Waiting for other processes, with a deadline: file locks, and polling."""

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from absl import logging

from transformer.errors import UserError

FIRST_WARNING = 10  # seconds of waiting before the first log line
WARNING_INTERVAL = 60  # seconds between later ones


def poll_until(what: str, advice: str, seconds: int) -> Iterator[None]:
    """Yields before each attempt of a polling loop, and logs what it waits for.

    Raises UserError with the advice if the loop still runs after `seconds`.
    """
    started, next_warning = time.monotonic(), FIRST_WARNING
    while True:
        yield
        waited = time.monotonic() - started
        if waited > seconds:
            raise UserError(f"waited {waited:.0f} s for {what}; {advice}")
        if waited > next_warning:
            next_warning = waited + WARNING_INTERVAL
            logging.warning("Waiting for %s: %.0f of at most %d s.", what, waited, seconds)


def try_lock(file: IO[str]) -> bool:
    """Locks an open file unless another process has. The lock ends when the file is closed or the process dies.

    Raises UserError if the file system has no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise UserError(f"{file.name}: cannot be locked ({error.strerror}); name a folder on another disk") from error
    return True


@contextlib.contextmanager
def exclusive(lock: Path, holder: str, advice: str, seconds: int) -> Iterator[None]:
    """Locks a file, which is created if missing, during the block.

    Raises UserError if the lock is not free within `seconds`. The message names the `holder` and gives the advice.
    """
    with lock.open("w") as file:
        for _ in poll_until(f"{holder} ({lock})", advice, seconds):
            if try_lock(file):
                break
            time.sleep(0.1)
        yield
