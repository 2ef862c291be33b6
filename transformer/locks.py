"""Locks on files: a process that dies lets go of them, so none is left behind."""

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from transformer.errors import UserError
from transformer.polling import poll_until


def taken(file: IO[str]) -> bool:
    """Whether the file's lock is now this process's, which lets go of it when it closes the file or dies.

    Raises UserError if its file system has no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise UserError(f"{file.name}: cannot be locked ({error.strerror}); name a folder on another disk") from error
    return True


@contextlib.contextmanager
def turn(lock: Path, process: str, advice: str, seconds: int) -> Iterator[None]:
    """Holds the lock file while the block runs.

    Raises UserError, with the advice, if `process`, another one, has held it for so many seconds.
    """
    with lock.open("w") as file:
        for _ in poll_until(f"{process} ({lock})", advice, seconds):
            if taken(file):
                break
            time.sleep(0.1)
        yield
