"""Attention masks (section 3.2.3): booleans, True where a query may attend to a key. All masks are created here.

A segment is the number of a sentence in its row, from 1; 0 is padding. Positions attend only within their segment.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from transformer.special_tokens import PAD


def segments_of(tokens: Int[Array, "B L"]) -> Int[Array, "B L"]:
    """Returns the segments of rows with one sentence each: 1 for its tokens, 0 for padding."""
    return (tokens != PAD).astype(jnp.int32)


def attention_mask(
    query_segments: Int[Array, "B T"], key_segments: Int[Array, "B S"], causal: bool
) -> Bool[Array, "B 1 T S"]:
    """Returns True for keys of the query's segment that are not padding and, if causal, not later in the row."""
    queries, keys = query_segments[:, None, :, None], key_segments[:, None, None, :]
    mask = (queries == keys) & (keys != 0)
    if causal:
        length = query_segments.shape[1]
        mask = mask & jnp.tril(jnp.ones((length, length), bool))[None, None]
    return mask
