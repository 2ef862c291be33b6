"""The folder of all that is prepared once for many runs, and how processes take turns in it."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from transformer import files, locks
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
        if error.errno in files.FULL_DISK:
            raise
        raise UserError(f"data.cache_dir={path}: {error.strerror}; name a folder that can be written") from error
    return path.resolve()


def turn(lock: Path, seconds: int) -> AbstractContextManager[None]:
    """`locks.turn` among processes that prepare data."""
    return locks.turn(lock, "another process that prepares data", "see whether it still does", seconds)


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
