"""The rules by which training pairs are dropped."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from jaxtyping import Bool, UInt64

from transformer.data.sources.lines import counted

# Reasons to drop a pair, in the order in which they are checked, and their names in the log.
REASONS = {
    "invalid_utf8": "not UTF-8",
    "empty": "with an empty side",
    "too_long": "longer than data.max_length",
    "length_ratio": "beyond data.max_length_ratio",
    "duplicate": "repeated",
}

MAX_DROPPED = 0.05  # fraction of the pairs that may be dropped without a warning
HASHES_PER_PASS = 1 << 24  # sorted at once, in about 0.6 GB


@dataclass(frozen=True)
class Rules:
    """The limits for training pairs, from the group `config.data`."""

    max_length: int
    max_length_ratio: float
    deduplicate: bool


NO_LIMITS = Rules(max_length=sys.maxsize, max_length_ratio=0.0, deduplicate=False)  # for held-out pairs


def drop_reason(lengths: Sequence[int], rules: Rules) -> str | None:
    """Returns the reason to drop a pair, or None. The lengths of its sides do not count end-of-sentence."""
    longer, shorter = max(lengths), min(lengths)
    if not shorter:
        return "empty"
    if longer + 1 > rules.max_length:
        return "too_long"
    if rules.max_length_ratio and longer > rules.max_length_ratio * shorter:
        return "length_ratio"
    return None


def content_hash(source: str, target: str) -> int:
    """Hashes a pair to 64 bits. Among 36 million different pairs the chance of any collision is 4 in 100,000."""
    digest = blake2b(source.encode() + b"\n" + target.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


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


def summary(kept: int, dropped: dict[str, int], invalid: str = "") -> str:
    """Returns a line for the log: "28,990 pairs kept, 10 dropped: 7 repeated, 3 with an empty side".

    `invalid` is the error about the first side that is not UTF-8, which ends the line.
    """
    counts = sorted(((count, REASONS[reason]) for reason, count in dropped.items() if count), reverse=True)
    if not counts:
        return f"{counted(kept, 'pair')} kept, none dropped"
    reasons = ", ".join(f"{count:,} {words}" for count, words in counts)
    line = f"{counted(kept, 'pair')} kept, {sum(dropped.values()):,} dropped: {reasons}"
    return f"{line}; {invalid}" if invalid else line
