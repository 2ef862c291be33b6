"""Random numbers as a pure function of integers, so that any part of a stream can be computed in any order."""

import numpy as np
from jaxtyping import Integer, UInt64

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(*values: int | Integer[np.ndarray, "N"]) -> UInt64[np.ndarray, "N"]:
    """Hashes integers, or arrays of integers elementwise, to 64 bits by applying SplitMix64 to each value in turn."""
    state = np.zeros(1, np.uint64)
    for value in values:
        state = state ^ np.atleast_1d(np.asarray(value).astype(np.uint64))
        state = state + _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return state
