"""Attention masks (section 3.2.3): booleans, True where a query may attend to a key. All masks are
created here.

A segment is the number of a sentence in its row, from 1; 0 is padding. Positions attend only within
their segment.
"""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from transformer.support.special_tokens import PAD


@struct.dataclass
class Mask:
    """The segments that a mask follows from.

    Fused attention takes these, plain attention `dense`.
    """

    query_segments: Int[Array, "B T"]
    key_segments: Int[Array, "B S"]
    # whether keys later in the row are masked too
    is_causal: bool = struct.field(pytree_node=False)
    # False: each row is one sentence, padded at its end
    is_packed: bool = struct.field(pytree_node=False)

    @property
    def dense(self) -> Bool[Array, "B 1 T S"]:
        """True for keys of the query's segment that are not padding and, if causal, not later in
        the row.
        """
        queries, keys = self.query_segments[:, None, :, None], self.key_segments[:, None, None, :]
        mask = (queries == keys) & (keys != 0)
        return mask & jnp.tri(queries.shape[2], dtype=bool)[None, None] if self.is_causal else mask


def segments_of(tokens: Int[Array, "B L"]) -> Int[Array, "B L"]:
    """Returns the segments of rows with one sentence each: 1 for its tokens, 0 for padding."""
    return (tokens != PAD).astype(jnp.int32)
