"""Atomic writing of files and folders, and rounding of the numbers in them."""

import contextlib
import errno
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from transformer.support.errors import MALFORMED, UserError
from transformer.support.locks import try_lock

Parsed = TypeVar("Parsed")
# Errors of a full disk, or of a full quota.
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


def expand_user(name: str) -> Path:
    """Returns the path with a leading ~ replaced by the home folder, if there is such a user."""
    return Path(os.path.expanduser(name))


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 text atomically, as `write_bytes` does."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file atomically.

    A kill leaves the old or the new file, and several machines may write it at once.
    """
    unfinished = path.with_name(f".{uuid.uuid4().hex}.unfinished")
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            # The content must be on disk before the name refers to it.
            file.flush()
            os.fsync(file.fileno())
        # Renaming is atomic.
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_json(path: Path, value: object) -> None:
    """Writes indented JSON atomically."""
    # allow_nan=False: NaN is not JSON, and other programs could not read the file.
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    # Python represents invalid UTF-8 in file names by surrogates, which can only be encoded as
    # escapes.
    write_bytes(path, text.encode(errors="backslashreplace"))


def read_json(path: Path, parse: Callable[[Any], Parsed], advice: str) -> Parsed:
    """Returns the result of `parse` for the content of a JSON file.

    Raises UserError, with the path, if the file cannot be read or `parse` fails.
    """
    try:
        return parse(json.loads(path.read_bytes()))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except OSError as error:
        raise UserError(f"{error.filename or path}: {error.strerror}; {advice}") from error
    except MALFORMED as error:
        raise UserError(f"{path}: damaged ({type(error).__name__}: {error}); {advice}") from error


def make_folder(path: Path, flag: str) -> None:
    """Creates the folder, with its parents, unless it exists.

    Raises UserError, which names the flag, if it cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in FULL_DISK:
            raise
        raise UserError(
            f"{flag}={path}: cannot be made ({error.strerror}: {error.filename}); "
            "name another folder"
        ) from error


def check_new(output: Path) -> None:
    """Raises UserError if `output` exists."""
    if os.path.lexists(output):  # a link to a missing folder too
        raise UserError(f"--output={output}: exists; delete it, or name another folder")


@contextlib.contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """Yields a temporary folder that becomes `output` if the block succeeds.

    Raises UserError if `output` exists, or if another process is writing it.
    """
    check_new(output)
    make_folder(output.parent, "--output")
    unfinished = output.with_name(f".{output.name}.unfinished")
    lock = output.with_name(f"{unfinished.name}.lock")
    with lock.open("w") as file:
        if not try_lock(file):
            raise UserError(f"--output={output}: another process is writing it")
        # A process that was killed may have left the folder.
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        try:
            yield unfinished
            # The folder appears under its name only when it is complete.
            unfinished.rename(output)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
            lock.unlink()


def six_digits(value: Any) -> Any:
    """Returns the JSON data with floats rounded to six significant digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: six_digits(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [six_digits(item) for item in value]
    return value
