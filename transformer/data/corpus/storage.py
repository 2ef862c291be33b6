"""The files of a corpus: one flat array each, appended to during preparation and memory-mapped afterwards."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, UInt64

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
    "hashes": (np.uint64, 1),  # of the pairs, sorted, to find them in other splits
    "source_hashes": (np.uint64, 1),
}
HASHES = ("hashes", "source_hashes")
HASHES_PER_PASS = 1 << 24  # sorted at once, in about 0.6 GB
_REPORT = "corpus.json"
_COPIED = 1 << 20  # rows copied at once


def token_dtype(vocab_sizes: tuple[int, int]) -> np.dtype:
    return np.dtype(np.uint16 if max(vocab_sizes) <= 1 << 16 else np.int32)


def open_array(folder: Path, name: str, dtype: str | None = None, mode: str = "r") -> np.ndarray:
    """Maps a nonempty file into memory. Only `tokens` needs the `dtype`."""
    fixed, width = _LAYOUT[name]
    array = np.memmap(folder / name, fixed or dtype, mode)
    return array if width == 1 else array.reshape(-1, width)


def is_first_occurrence(hashes: UInt64[np.ndarray, "N"]) -> Bool[np.ndarray, "N"]:
    """Returns which entries have a value that no entry before them has.

    Pass r considers the hashes that are r modulo the number of passes, about `HASHES_PER_PASS` of them. So equal hashes
    meet in one pass, and only the result grows with N. The hashes may be mapped from a file.
    """
    passes = math.ceil(len(hashes) / HASHES_PER_PASS)
    result = np.zeros(len(hashes), bool)
    for remainder in range(passes):
        starts = range(0, len(hashes), HASHES_PER_PASS)
        chunks = ((start, hashes[start : start + HASHES_PER_PASS]) for start in starts)
        rows = np.concatenate([start + np.flatnonzero(chunk % passes == remainder) for start, chunk in chunks])
        _, first = np.unique(hashes[rows], return_index=True)
        result[rows[first]] = True
    return result


def keep_rows(folder: Path, is_kept: Bool[np.ndarray, "N"]) -> None:
    """Removes all other pairs from the index. Their tokens and text stay in the other files, unused."""
    for path in (*folder.glob("*offsets"), *folder.glob("*lengths")):
        rows, shorter = open_array(folder, path.name), path.with_suffix(".kept")
        with shorter.open("wb") as file:
            for begin in range(0, len(rows), _COPIED):
                part = slice(begin, begin + _COPIED)
                file.write(rows[part][is_kept[part]].tobytes())
        shorter.replace(path)


def write_report(folder: Path, report: dict[str, Any]) -> None:
    """Writes the last file of a folder.

    Adds the sizes of the arrays, and a digest that is equal for folders with the same arrays, without their hashes.
    """
    paths, total = sorted(folder.iterdir()), hashlib.sha256()
    for path in paths:
        if path.name not in HASHES:
            with path.open("rb") as file:
                total.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    sizes = {path.name: path.stat().st_size for path in paths}
    files.write_json(folder / _REPORT, report | {"digest": total.hexdigest(), "sizes": sizes})


def read_report(folder: Path) -> dict[str, Any]:
    """Reads the report of a folder. Raises UserError if it is damaged, or a file has another size than it recorded.

    Verifying checksums at every start would take too long.
    """
    name = _REPORT
    try:
        report = json.loads((folder / name).read_text(encoding="utf-8"))
        for name, size in report["sizes"].items():
            if (actual := (folder / name).stat().st_size) != size:
                raise ValueError(f"{actual} bytes of {size}")
    except UNREADABLE as error:
        raise UserError(
            f"{folder / name}: damaged ({error}); delete {folder}, and the next run prepares it again"
        ) from error
    return report
