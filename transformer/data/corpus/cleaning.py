"""Which training pairs are left out, and why."""

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from jaxtyping import Int, UInt64

# Every reason there is, in the order in which they are looked for, with the words for a report.
REASONS = {
    "invalid_utf8": "not UTF-8",
    "empty": "with an empty side",
    "too_long": "longer than data.max_length",
    "length_ratio": "beyond data.max_length_ratio",
    "duplicate": "duplicates",
}


@dataclass(frozen=True)
class Rules:
    """What a training pair must satisfy, as in the config's group `data`."""

    max_length: int
    max_length_ratio: float
    deduplicate: bool

    @classmethod
    def of(cls, data) -> "Rules":
        return cls(data.max_length, data.max_length_ratio, data.deduplicate)


def length_fault(source_length: int, target_length: int, rules: Rules) -> str | None:
    """The reason to drop a pair with so many pieces (at least 1, end of sentence not counted) a side, or None."""
    longer, shorter = max(source_length, target_length), min(source_length, target_length)
    if longer + 1 > rules.max_length:
        return "too_long"
    if rules.max_length_ratio and longer > rules.max_length_ratio * shorter:
        return "length_ratio"
    return None


def content_hash(source: str, target: str) -> int:
    """64 bits that equal pairs share. Among 36 million pairs the chance that any two others do is 4 in 100,000."""
    digest = blake2b(source.encode() + b"\n" + target.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def first_occurrences(hashes: UInt64[np.ndarray, "N"]) -> Int[np.ndarray, "M"]:
    """The ascending indices of the values not seen before."""
    _, first = np.unique(hashes, return_index=True)
    return np.sort(first)


def summary(kept: int, dropped: dict[str, int]) -> str:
    """One line for the log: "28,990 pairs kept, 10 dropped: 7 duplicates, 3 with an empty side"."""
    total = sum(dropped.values())
    if not total:
        return f"{kept:,} pairs kept, none dropped"
    counts = sorted(((count, REASONS[reason]) for reason, count in dropped.items() if count), reverse=True)
    return f"{kept:,} pairs kept, {total:,} dropped: " + ", ".join(f"{count:,} {words}" for count, words in counts)
