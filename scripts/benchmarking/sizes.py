"""Sizes of models and batches that are compared, and random sentences for them."""

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from transformer.special_tokens import BOS, EOS, PAD, SPECIAL

SPECIAL_TOKENS = {"pad": PAD, "bos": BOS, "eos": EOS}


class Size(NamedTuple):
    """A model, and the batch of a training step: `pairs` rows of `length` positions on either side."""

    num_layers: int
    d_model: int
    d_ff: int
    num_heads: int
    vocab_size: int
    pairs: int
    length: int

    @property
    def task(self) -> dict[str, Any]:
        """The description of the model for workers."""
        names = ("num_layers", "d_model", "d_ff", "num_heads", "vocab_size")
        return {name: getattr(self, name) for name in names} | SPECIAL_TOKENS


SIZES = {
    "small": Size(3, 256, 1024, 4, 8_000, pairs=128, length=32),
    "base": Size(6, 512, 2048, 8, 32_000, pairs=32, length=64),
}


def random_sentences(seed: int, lengths: Sequence[int], vocab_size: int) -> list[list[int]]:
    """Returns sentences of these lengths: ordinary tokens, then EOS. The last token of the vocabulary never occurs."""
    generator = random.Random(seed)
    ordinary = range(SPECIAL, vocab_size - 1)  # Marian's models keep the last one for padding
    return [[*generator.choices(ordinary, k=length - 1), EOS] for length in lengths]
