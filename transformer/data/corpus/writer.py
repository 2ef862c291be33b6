"""Fills the folder of a corpus from what processes encode."""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from jaxtyping import Int

from transformer import progress_bar as progress
from transformer.data.corpus import storage, workers
from transformer.data.corpus.encoding import Encoded

_SMALL = 50_000  # pairs that one process encodes in about the time that it takes to start others


def append_all(
    folder: Path, encode: Callable[..., Encoded], stretches: Iterable, total: int, description: str, wanted_workers: int
) -> Counter:
    """Appends what `encode` makes of each stretch to the files in `folder`. Returns what was dropped, by reason."""
    processes = 1 if total <= _SMALL and not wanted_workers else workers.available(wanted_workers)
    dropped: Counter = Counter()
    position = text_position = 0
    with storage.Appender(folder) as appender, progress.bar(description, total) as advance:
        for encoded in workers.map_ordered(encode, stretches, processes):
            arrays = dict(encoded.arrays)
            arrays["offsets"], position = _offsets(arrays["lengths"] - 1, position)
            if "text" in arrays:
                arrays["text_offsets"], text_position = _offsets(arrays["text_lengths"], text_position)
            for name, array in arrays.items():
                appender.append(name, array)
            dropped += encoded.dropped
            advance(encoded.read)
    return dropped


def _offsets(lengths: Int[np.ndarray, "N 2"], position: int) -> tuple[Int[np.ndarray, "N"], int]:
    """Where each pair starts when the first starts at `position`, and where the last one ends."""
    ends = position + np.cumsum(lengths.sum(axis=1, dtype=np.int64))
    return np.concatenate([[position], ends])[:-1], int(ends[-1]) if len(ends) else position
