"""The record of a checkpoint: its progress and configuration, and a checksum of every file."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer.support import files
from transformer.support.errors import UNREADABLE

# The file with the record, in the folder of a checkpoint.
NAME = "checkpoint.json"
OPTIMIZER = "optimizer"  # the item that only training reads


def write(
    folder: Path, contents: Mapping[str, Any], checksums: Mapping[str, Any] | None = None
) -> None:
    """Writes a checkpoint's record, atomically, with the checksums of its files.

    Checksums are computed unless they are given.
    """
    # Each item is a folder. The files beside these folders are Orbax's own notes.
    if checksums is None:
        paths = (path for path in folder.glob("*/**/*") if path.is_file())
        checksums = {str(path.relative_to(folder)): _checksum(path) for path in sorted(paths)}
    # The record has a checksum of itself, too.
    record = {**contents, "files": checksums}
    files.write_text(folder / NAME, json.dumps(record | {"checksum": _digest(record)}))


def read(folder: Path) -> dict[str, Any]:
    """Returns a checkpoint's record.

    Raises ValueError if it is damaged, and OSError if it cannot be read.
    """
    record = json.loads((folder / NAME).read_bytes())
    if not isinstance(record, dict) or record.pop("checksum", None) != _digest(record):
        raise ValueError(f"{NAME} does not match its checksum")
    return record


def digest(folder: Path) -> str:
    """Returns a digest of the files that decoding needs, without reading them.

    Raises the errors of `read`.
    """
    return _digest(_without_optimizer(read(folder)))


def has_optimizer(folder: Path) -> bool:
    """True if a checkpoint still has the optimizer's state. Raises the errors of `read`."""
    record = read(folder)
    return record["files"] != _without_optimizer(record)


def remove_optimizer(folder: Path) -> None:
    """Deletes the optimizer's state of a checkpoint, which stays valid if the process is killed."""
    record = read(folder)
    # The record first: files that it does not list may be missing.
    write(folder, record, _without_optimizer(record))
    shutil.rmtree(folder / OPTIMIZER)


def damage(folder: Path, for_training: bool = False) -> str | None:
    """Describes the first damaged file of a checkpoint; None if all are undamaged.

    The optimizer's files are only checked `for_training`.
    """
    try:
        record = read(folder)
        checksums = record["files"] if for_training else _without_optimizer(record)
        for name, checksum in checksums.items():
            if _checksum(folder / name) != checksum:
                return f"damaged: {name} does not match its checksum"
    except UNREADABLE as error:
        return f"damaged: its files cannot be read ({type(error).__name__}: {error})"
    return None


def _without_optimizer(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: checksum
        for name, checksum in record["files"].items()
        if not name.startswith(f"{OPTIMIZER}/")
    }


def _checksum(path: Path) -> list[int | str]:
    # The size is compared too.
    with path.open("rb") as file:
        return [path.stat().st_size, hashlib.file_digest(file, "blake2b").hexdigest()[:32]]


def _digest(record: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(record, sort_keys=True).encode()).hexdigest()[:32]
