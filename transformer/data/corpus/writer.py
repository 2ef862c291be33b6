"""Writes the files of a corpus from the chunks that worker processes encode."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from jaxtyping import Int

from transformer import progress_bar
from transformer.data.corpus import workers
from transformer.data.corpus.encoding import Chunk, Encoded

_SMALL = 50_000  # pairs that one process encodes in about the time it takes to start others


def write(
    folder: Path,
    encode: Callable[[Chunk], Encoded],
    chunks: Iterable[Chunk],
    total: int,
    description: str,
    wanted_workers: int,
) -> tuple[int, Counter]:
    """Writes the encoded chunks to files in `folder`. Returns the numbers of kept pairs and of dropped ones."""
    processes = 1 if total <= _SMALL and not wanted_workers else workers.num_workers(wanted_workers)
    kept, dropped = 0, Counter()
    position = text_position = 0
    with contextlib.ExitStack() as stack:
        advance = stack.enter_context(progress_bar.bar(description, total))
        opened = {}
        for encoded in workers.map_ordered(encode, chunks, processes):
            arrays = dict(encoded.arrays)
            arrays["offsets"], position = _offsets(arrays["lengths"] - 1, position)
            if "text" in arrays:
                arrays["text_offsets"], text_position = _offsets(arrays["text_lengths"], text_position)
            for name, array in arrays.items():
                if name not in opened:
                    opened[name] = stack.enter_context((folder / name).open("wb"))
                opened[name].write(np.ascontiguousarray(array).data)
            kept += len(arrays["lengths"])
            dropped += encoded.dropped
            advance(encoded.chunk_size)
    return kept, dropped


def _offsets(lengths: Int[np.ndarray, "N 2"], start: int) -> tuple[Int[np.ndarray, "N"], int]:
    """Returns the offset of each pair if the first is at `start`, and the end of the last."""
    ends = start + np.cumsum(lengths.sum(axis=1, dtype=np.int64))
    return np.concatenate([[start], ends])[:-1], int(ends[-1]) if len(ends) else start
