"""Lengths of outputs: their limits, and the penalties that divide log-probabilities."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Array, Float, Int

from transformer.config_types import Config, output_limit

# Functions of a length, EOS included, and alpha that divide log-probabilities: Wu et al. 2016, equation 14, and a plain
# power. None decreases with the length, as the bound of the search supposes.
LENGTH_PENALTIES: dict[str, Callable] = {
    "gnmt": lambda length, alpha: ((5.0 + length) / 6.0) ** alpha,
    "power": lambda length, alpha: length**alpha,
}


def length_penalty(length: int | Int[Array, "*B"], config: Config) -> float | Float[Array, "*B"]:
    """Returns the divisor of the log-probability of outputs of this length, EOS included."""
    return LENGTH_PENALTIES[config.length_penalty_form](length, config.length_penalty)


def output_limits(length: int, config: Config) -> Int[np.ndarray, "S"]:
    """Returns the most tokens before EOS of the outputs for sources of 0 to `length` - 1 tokens before EOS."""
    return np.array([output_limit(tokens, config) for tokens in range(length)], np.int32)
