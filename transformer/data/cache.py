"""The folder of all that is prepared once for many runs, and how processes take turns in it."""

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from transformer import files
from transformer.errors import UserError
from transformer.waiting import patiently


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
        if error.errno in files.FULL_DISK:
            raise
        raise UserError(f"data.cache_dir={path}: {error.strerror}; name a folder that can be written") from error
    return path.resolve()


@contextlib.contextmanager
def turn(lock: Path, seconds: int) -> Iterator[None]:
    """Holds the lock file while the block runs. A process that dies lets go of it, so none is left behind.

    Raises UserError if another process has held it for so many seconds.
    """
    with lock.open("w") as file:
        for _ in patiently(f"another process that prepares data ({lock})", "see whether it still does", seconds):
            if files.locked(file):
                break
            time.sleep(0.1)
        yield


def lock_of(folder: Path) -> Path:
    """The lock file that those take turns with who make the folder, or what is in it."""
    return folder.with_name(f".{folder.name}.lock")


def key(content: object) -> str:
    """Equal for equal content, which is what JSON holds: part of a folder's name."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def make_once(folder: Path, fill: Callable[[Path], None], seconds: int) -> None:
    """Makes `folder` unless it is there. Of the processes that want it one makes it; the others wait, as in `turn`."""
    with turn(lock_of(folder), seconds):
        if not folder.exists():
            make_folder(folder, fill)


def make_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Makes `folder`, whole or not at all. The caller holds its lock, so what is unfinished is nobody's."""
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        fill(unfinished)
        unfinished.rename(folder)
    except OSError as error:
        if error.errno in files.FULL_DISK:
            raise
        raise UserError(f"data.cache_dir: cannot write {folder} ({error.strerror}); name another folder") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
