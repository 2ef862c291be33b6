"""The folder of prepared corpora and downloads, and how processes take turns in it."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from transformer import files
from transformer.errors import UserError


def folder(data) -> Path:
    """`data.cache_dir`, or the user's cache by the XDG convention; made when missing. UserError if it cannot be."""
    if data.cache_dir:
        path = files.expanded(data.cache_dir)
    else:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        path = Path(home) / "transformer"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"data.cache_dir={path}: {error.strerror}; name a folder that can be written") from error
    return path.resolve()


@contextlib.contextmanager
def turn(lock: Path) -> Iterator[None]:
    """Holds the lock file while the block runs. A process that dies lets go of it, so none is left behind."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
