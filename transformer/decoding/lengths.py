"""Lengths of outputs: their limits, and the penalties that divide log-probabilities."""

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Int

from transformer.config_types import Config

# Functions of a length, EOS included, and alpha that divide log-probabilities: Wu et al. 2016, equation 14, and a plain
# power. None decreases with the length, as the bound of the search supposes.
LENGTH_PENALTIES: dict[str, Callable] = {
    "gnmt": lambda length, alpha: ((5.0 + length) / 6.0) ** alpha,
    "power": lambda length, alpha: length**alpha,
}


def output_limits(length: int, config: Config) -> Int[np.ndarray, "S"]:
    """Returns the most tokens before EOS of the outputs for sources of 0 to `length` - 1 tokens before EOS."""
    factor, extra = config.max_length_factor, config.max_extra_length
    # 1.1 x 10 is above 11 in floating point.
    return np.array([math.ceil(round(factor * tokens, 6)) + extra for tokens in range(length)], np.int32)
