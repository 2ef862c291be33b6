"""Attention masks (section 3.2.3): booleans, True where a query may attend to a key.

A segment is the number of a sentence in its row, from 1; 0 is padding. Positions attend only within
their segment. All masks of training and evaluation are created here.
"""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from transformer.support.special_tokens import PAD


@struct.dataclass
class Mask:
    """The segments that define a mask.

    Fused attention takes the segments, plain attention takes `dense`.
    """

    query_segments: Int[Array, "B T"]
    key_segments: Int[Array, "B S"]
    # True: a query does not attend to keys that are later in the row.
    is_causal: bool = struct.field(pytree_node=False)
    # False: each row is one sentence, padded at its end.
    is_packed: bool = struct.field(pytree_node=False)

    @property
    def dense(self) -> Bool[Array, "B 1 T S"]:
        """True for keys of the query's segment, except padding and, if causal, later keys."""
        queries = self.query_segments[:, None, :, None]  # (B, 1, T, 1)
        keys = self.key_segments[:, None, None, :]  # (B, 1, 1, S)
        mask = (queries == keys) & (keys != 0)
        if self.is_causal:
            mask = mask & jnp.tri(queries.shape[2], dtype=bool)[None, None]
        return mask


def segments_of(tokens: Int[Array, "B L"]) -> Int[Array, "B L"]:
    """Returns the segments of rows with one sentence each: 1 for its tokens, 0 for padding."""
    return (tokens != PAD).astype(jnp.int32)
