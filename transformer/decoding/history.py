"""The hypotheses of a search, as constraints see them."""

from collections.abc import Mapping
from typing import NamedTuple

from jaxtyping import Array, Bool, Int

Forbidden = Bool[Array, "B K V"]  # as the next token


class History(NamedTuple):
    """The tokens of the hypotheses, and the limits of their outputs.

    position: the number of tokens of each hypothesis.
    limits: the most tokens before EOS that an output of each row may have.
    spelling: arrays of `Spelling` by name, for phrases and fragments. Empty where nothing needs
      them.
    """

    tokens: Int[Array, "B K L"]
    position: Int[Array, ""]
    limits: Int[Array, " B"]
    spelling: Mapping[str, Array]
