"""Which positions may attend to which: booleans, True = may attend. All masks are made here (section 3.2.3).

Segments say which sentence a position belongs to: 0 is padding, and positions of different segments never see each
other. A row with one sentence has segment 1 on it; a packed row counts 1, 2, 3 ...
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from transformer.special_tokens import PAD


def segments_of(tokens: Int[Array, "B L"]) -> Int[Array, "B L"]:
    """Segments of rows that hold one sentence each: 1 on its tokens, 0 on padding."""
    return (tokens != PAD).astype(jnp.int32)


def attention_mask(
    query_segments: Int[Array, "B T"], key_segments: Int[Array, "B S"], causal: bool
) -> Bool[Array, "B 1 T S"]:
    """True where a query may attend to a key: the same segment, not padding and, if causal, not later in the row."""
    queries, keys = query_segments[:, None, :, None], key_segments[:, None, None, :]
    mask = (queries == keys) & (keys != 0)
    if causal:
        length = query_segments.shape[1]
        mask = mask & jnp.tril(jnp.ones((length, length), bool))[None, None]
    return mask
