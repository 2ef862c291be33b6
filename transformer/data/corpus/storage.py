"""The files of a corpus: one flat array each, appended to during preparation and memory-mapped afterwards."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from transformer import files
from transformer.errors import UNREADABLE, UserError

# The type and row width of each file's entries. `tokens` has the smallest type that holds the vocabulary.
_LAYOUT = {
    "tokens": (None, 1),  # source, EOS, target, EOS, source, EOS, ...
    "offsets": (np.int64, 1),  # the index of a pair's first token
    "lengths": (np.int32, 2),  # tokens of source and target, EOS included
    "text": (np.uint8, 1),  # UTF-8, in the order of the tokens
    "text_offsets": (np.int64, 1),
    "text_lengths": (np.int32, 2),  # bytes of source and target
    "hashes": (np.uint64, 1),  # of training pairs, to find them in held-out splits
    "source_hashes": (np.uint64, 1),
}
_HASHES = ("hashes", "source_hashes")
_PER_PAIR = ("offsets", "lengths", "text_offsets", "text_lengths", *_HASHES)
_REPORT = "corpus.json"
_COPIED = 1 << 20  # rows copied at once


def token_dtype(vocab_sizes: tuple[int, int]) -> np.dtype:
    return np.dtype(np.uint16 if max(vocab_sizes) <= 1 << 16 else np.int32)


def open_array(folder: Path, name: str, dtype: str | None = None) -> np.ndarray:
    """Maps a nonempty file into memory, read-only. Only `tokens` needs the `dtype`."""
    fixed, width = _LAYOUT[name]
    array = np.memmap(folder / name, fixed or dtype, "r")
    return array if width == 1 else array.reshape(-1, width)


def keep_rows(folder: Path, is_kept: Bool[np.ndarray, "N"]) -> None:
    """Removes all other rows from the per-pair files. Their tokens and text stay in the other files, unused."""
    for name in _PER_PAIR:
        path = folder / name
        if path.exists():
            rows, shorter = open_array(folder, name), path.with_suffix(".kept")
            with shorter.open("wb") as file:
                for begin in range(0, len(rows), _COPIED):
                    part = slice(begin, begin + _COPIED)
                    file.write(np.ascontiguousarray(rows[part][is_kept[part]]).data)
            shorter.replace(path)


def digest(folder: Path) -> str:
    """Returns a digest that is equal for folders with the same arrays, without their hashes."""
    total = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.name not in _HASHES):
        with path.open("rb") as file:
            total.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()


def write_report(folder: Path, report: dict[str, Any]) -> None:
    """Writes the last file of a folder, which records the sizes of the arrays."""
    files.write_json(folder / _REPORT, report | {"sizes": _sizes(folder)})


def read_report(folder: Path) -> dict[str, Any]:
    """Reads the report of a folder. Raises UserError if it is damaged, or a file has another size than it recorded.

    Verifying checksums at every start would take too long.
    """
    advice = f"delete {folder}, and the next run prepares it again"
    try:
        report = json.loads((folder / _REPORT).read_text(encoding="utf-8"))
    except UNREADABLE as error:
        raise UserError(f"{folder / _REPORT}: damaged ({error}); {advice}") from error
    actual = _sizes(folder)
    for name, size in report["sizes"].items():
        if actual.get(name) != size:
            raise UserError(f"{folder / name}: damaged, {actual.get(name, 0)} bytes of {size}; {advice}")
    return report


def _sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.name in _LAYOUT}
