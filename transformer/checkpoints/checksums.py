"""The record of a checkpoint: its progress and configuration, and a checksum of every file."""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer import files
from transformer.errors import UNREADABLE

NAME = "checkpoint.json"


def write(folder: Path, contents: Mapping[str, Any], checksums: Mapping[str, Any] | None = None) -> None:
    """Writes a checkpoint's record, atomically, with the checksums of its files. They are computed if not given."""
    if checksums is None:  # of the items, each in a folder; files beside these folders are Orbax's own notes
        paths = (path for path in folder.glob("*/**/*") if path.is_file())
        checksums = {str(path.relative_to(folder)): _checksum(path) for path in sorted(paths)}
    record = {**contents, "files": checksums}
    files.write_text(folder / NAME, json.dumps(record | {"checksum": _digest(record)}))


def read(folder: Path) -> dict[str, Any]:
    """Returns a checkpoint's record. Raises ValueError if it is damaged, OSError if it cannot be read."""
    record = json.loads((folder / NAME).read_bytes())
    if not isinstance(record, dict) or record.pop("checksum", None) != _digest(record):
        raise ValueError(f"{NAME} does not match its checksum")
    return record


def digest(folder: Path) -> str:
    """Returns a digest of all files that a checkpoint was saved with, without reading them. Raises as `read` does."""
    record = read(folder)
    return record.get("digest") or _digest(record["files"])


def has_item(folder: Path, item: str) -> bool:
    """Tells whether a checkpoint still has this item. Raises as `read` does."""
    return any(name.startswith(f"{item}/") for name in read(folder)["files"])


def remove_item(folder: Path, item: str) -> None:
    """Deletes an item of a checkpoint, which keeps its digest and stays valid if the process is killed."""
    if has_item(folder, item):
        record = read(folder) | {"digest": digest(folder)}
        rest = {name: checksum for name, checksum in record["files"].items() if not name.startswith(f"{item}/")}
        write(folder, record, rest)
    shutil.rmtree(folder / item, ignore_errors=True)


def damage(folder: Path) -> str | None:
    """Describes the first damaged file of a checkpoint. None if all files match their checksums."""
    try:
        for name, checksum in read(folder)["files"].items():
            with contextlib.suppress(FileNotFoundError):
                if _checksum(folder / name) == checksum:
                    continue
            if name in read(folder)["files"]:  # else the run has removed this item since
                fault = "does not match its checksum" if (folder / name).exists() else "is missing"
                return f"damaged: {name} {fault}"
    except UNREADABLE as error:
        return f"damaged: its checksums cannot be read ({type(error).__name__}: {error})"
    return None


def _checksum(path: Path) -> list[int | str]:
    with path.open("rb") as file:
        return [path.stat().st_size, hashlib.file_digest(file, "blake2b").hexdigest()[:32]]


def _digest(record: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(record, sort_keys=True).encode()).hexdigest()[:32]
