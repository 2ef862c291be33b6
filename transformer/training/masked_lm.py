"""The inputs and targets of masked language models: some tokens of a text are hidden and predicted."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key

from transformer.config_types import Config
from transformer.data.batches.collation import Batch
from transformer.special_tokens import BOS, PAD, SPECIAL

MASK = BOS  # the input in place of a masked token; no source has BOS
# The fractions of the chosen tokens that become MASK and a random token; the rest stays (Devlin et al. 2019, 3.1).
MASKED_FRACTION, RANDOM_FRACTION = 0.8, 0.1


def make_masking(training: Config, pieces: Sequence[str]) -> Callable[[Batch, jax.Array], Batch]:
    """Returns a function of (batch, key) that masks tokens of the source and makes them the targets."""
    starts = word_starts(pieces) if training.whole_word_masking else np.ones(len(pieces), bool)

    def inputs(batch: Batch, key: jax.Array) -> Batch:
        source, targets = mask_tokens(batch["source"], starts, training.masked_fraction, key)
        return batch | {"source": source, "target_output": targets}

    return inputs


def mask_tokens(
    tokens: Int[Array, "B S"], starts: Bool[np.ndarray, "V"], fraction: float, key: Key[Array, ""]
) -> tuple[Int[Array, "B S"], Int[Array, "B S"]]:
    """Returns (inputs, targets): the tokens with some masked, and the masked ones at their positions, PAD elsewhere.

    Args:
      starts: for each token of the vocabulary, whether it begins a word. All tokens of a word are masked, or none.
      fraction: the probability that a word is masked.
    """
    word_key, kind_key, token_key = jax.random.split(key, 3)
    words = jnp.maximum(jnp.cumsum(jnp.asarray(starts)[tokens], axis=1) - 1, 0)
    draws = jnp.take_along_axis(jax.random.uniform(word_key, tokens.shape), words, axis=1)
    is_chosen = (draws < fraction) & (tokens >= SPECIAL)
    kinds = jax.random.uniform(kind_key, tokens.shape)
    random_tokens = jax.random.randint(token_key, tokens.shape, SPECIAL, len(starts))
    kept_or_random = jnp.where(kinds < MASKED_FRACTION + RANDOM_FRACTION, random_tokens, tokens)
    replaced = jnp.where(kinds < MASKED_FRACTION, MASK, kept_or_random)
    return jnp.where(is_chosen, replaced, tokens), jnp.where(is_chosen, tokens, PAD)


def word_starts(pieces: Sequence[str]) -> Bool[np.ndarray, "V"]:
    """Returns whether each token begins a word. In a vocabulary that marks no beginnings, each token is a word."""
    starts = np.array([piece.startswith("\u2581") for piece in pieces])
    return starts if starts.any() else np.ones(len(pieces), bool)
