"""Arrays in files: appended to while a corpus is prepared, memory-mapped when it is used."""

import hashlib
from pathlib import Path

import numpy as np

# Name of a file to the type and row width of its entries. `ids` has the smallest type that holds the vocabulary.
_TABLES = {
    "offsets": (np.int64, 1),  # a pair's place among the ids: its source's, right before its target's
    "lengths": (np.int32, 2),  # pieces of source and target, end-of-sentence included although it is not stored
    "text": (np.uint8, 1),  # UTF-8, in the order of the ids
    "text_offsets": (np.int64, 1),
    "text_lengths": (np.int32, 2),  # bytes of source and target
    "hashes": (np.uint64, 1),
}
PER_PAIR = ("offsets", "lengths", "text_offsets", "text_lengths")


def ids_type(vocabulary_size: int) -> np.dtype:
    return np.dtype(np.uint16 if vocabulary_size <= 1 << 16 else np.int32)


def open_array(folder: Path, name: str, dtype: np.dtype | None = None) -> np.ndarray:
    """Maps a file that is not empty into memory, read-only. `dtype` is for `ids` alone."""
    type_, width = (dtype, 1) if name == "ids" else _TABLES[name]
    array = np.memmap(folder / name, type_, "r")
    return array if width == 1 else array.reshape(-1, width)


def sizes(folder: Path) -> dict[str, int]:
    """The bytes of each array's file."""
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.name in (*_TABLES, "ids")}


def digest(folder: Path) -> str:
    """Equal for folders with the same arrays."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            total.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()


class Appender:
    """Writes files of a folder piece by piece. Used in a `with` statement."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = {}

    def __enter__(self) -> "Appender":
        return self

    def __exit__(self, *_) -> None:
        for file in self._files.values():
            file.close()

    def append(self, name: str, array: np.ndarray) -> None:
        if name not in self._files:
            self._files[name] = (self._folder / name).open("wb")
        self._files[name].write(np.ascontiguousarray(array).data)


def keep_rows(folder: Path, rows: np.ndarray) -> None:
    """Cuts the per-pair files down to some of their rows. What the others point at stays where it is, unused."""
    for name in PER_PAIR:
        if (folder / name).exists():
            kept = np.array(open_array(folder, name)[rows])
            kept.tofile(folder / name)
