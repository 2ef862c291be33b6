"""Files that are there whole or not at all."""

import errno
import json
import os
from pathlib import Path

FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


def expanded(name: str) -> Path:
    """The path, with the folder that a ~ at its beginning stands for. It stays as it is if there is no such user."""
    return Path(os.path.expanduser(name))


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 text to `path` in one step, as `write_bytes` does."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Writes `path` in one step: a reader, or a run killed at any moment, sees the old file or the new one."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def append_line(path: Path, line: str) -> None:
    """Adds a line of UTF-8 to `path`: all of it, or on a disk that is full none."""
    content = f"{line}\n".encode()
    with path.open("ab", buffering=0) as file:
        end = file.tell()
        try:
            while content:
                content = content[file.write(content) :]
        except OSError:
            file.truncate(end)
            raise


def write_json(path: Path, value: object) -> None:
    """Writes `value` as indented JSON, in one step."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    # Bytes of a file's name that are not UTF-8 are code points in Python that only an escape, here JSON's, can hold.
    write_bytes(path, text.encode(errors="backslashreplace"))
