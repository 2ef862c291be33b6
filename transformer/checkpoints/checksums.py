"""The record of a checkpoint: its progress and configuration, and a checksum of every file."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer.support import files
from transformer.support.errors import UNREADABLE

NAME = "checkpoint.json"
OPTIMIZER = "optimizer"  # the item that only training reads


def write(
    folder: Path, contents: Mapping[str, Any], checksums: Mapping[str, Any] | None = None
) -> None:
    """Writes a checkpoint's record, atomically, with the checksums of its files.

    They are computed if not given.
    """
    # of the items, each in a folder; files beside these folders are Orbax's own notes
    if checksums is None:
        paths = (path for path in folder.glob("*/**/*") if path.is_file())
        checksums = {str(path.relative_to(folder)): _checksum(path) for path in sorted(paths)}
    record = {**contents, "files": checksums}
    files.write_text(folder / NAME, json.dumps(record | {"checksum": _digest(record)}))


def read(folder: Path) -> dict[str, Any]:
    """Returns a checkpoint's record.

    Raises ValueError if it is damaged, OSError if it cannot be read.
    """
    record = json.loads((folder / NAME).read_bytes())
    if not isinstance(record, dict) or record.pop("checksum", None) != _digest(record):
        raise ValueError(f"{NAME} does not match its checksum")
    return record


def digest(folder: Path) -> str:
    """Returns a digest of the files that a checkpoint is decoded with, without reading them.

    Raises as `read` does.
    """
    return _digest(_without_optimizer(read(folder)))


def has_optimizer(folder: Path) -> bool:
    """Tells whether a checkpoint still has the optimizer's state. Raises as `read` does."""
    record = read(folder)
    return record["files"] != _without_optimizer(record)


def remove_optimizer(folder: Path) -> None:
    """Deletes the optimizer's state of a checkpoint, which stays valid if the process is killed."""
    record = read(folder)
    write(folder, record, _without_optimizer(record))
    shutil.rmtree(folder / OPTIMIZER)


def damage(folder: Path, for_training: bool = False) -> str | None:
    """Describes the first damaged file of a checkpoint, of its optimizer only `for_training`.

    None if none is.
    """
    try:
        record = read(folder)
        for name, checksum in (
            record["files"] if for_training else _without_optimizer(record)
        ).items():
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
    with path.open("rb") as file:
        return [path.stat().st_size, hashlib.file_digest(file, "blake2b").hexdigest()[:32]]


def _digest(record: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(record, sort_keys=True).encode()).hexdigest()[:32]
