"""Attention masks (section 3.2.3): booleans, True where a query may attend to a key. All masks are created here.

A segment is the number of a sentence in its row, from 1; 0 is padding. Positions attend only within their segment.
"""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from transformer.special_tokens import PAD


@struct.dataclass
class Mask:
    """The segments that a mask follows from. Fused attention takes these, plain attention `dense`.

    Attributes:
      is_causal: whether keys later in the row are masked too.
      is_packed: False if each row is one sentence from its first position, padded at its end.
    """

    query_segments: Int[Array, "B T"]
    key_segments: Int[Array, "B S"]
    is_causal: bool = struct.field(pytree_node=False)
    is_packed: bool = struct.field(pytree_node=False)

    @property
    def dense(self) -> Bool[Array, "B 1 T S"]:
        return attention_mask(self.query_segments, self.key_segments, self.is_causal)


def segments_of(tokens: Int[Array, "B L"]) -> Int[Array, "B L"]:
    """Returns the segments of rows with one sentence each: 1 for its tokens, 0 for padding."""
    return (tokens != PAD).astype(jnp.int32)


def attention_mask(
    query_segments: Int[Array, "B T"], key_segments: Int[Array, "B S"], causal: bool
) -> Bool[Array, "B 1 T S"]:
    """Returns True for keys of the query's segment that are not padding and, if causal, not later in the row."""
    queries, keys = query_segments[:, None, :, None], key_segments[:, None, None, :]
    mask = (queries == keys) & (keys != 0)
    return mask & jnp.tri(query_segments.shape[1], dtype=bool)[None, None] if causal else mask
