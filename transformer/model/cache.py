"""The keys and values that decoding keeps, and self-attention over them. K hypotheses ("beams") per sentence."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.model.attention import MultiHeadAttention


@struct.dataclass
class LayerCache:
    """Keys and values of one decoder layer, in the layout in which products read them.

    Those of self-attention grow by one position per step, with an entry of each of K slots. Those of the encoder's
    output are computed once, and the hypotheses of a sentence share them; a decoder without encoder has none.
    """

    self_keys: Float[Array, "B H LK dk"]
    self_values: Float[Array, "B H LK dv"]
    memory_keys: Float[Array, "B H S dk"] | None
    memory_values: Float[Array, "B H S dv"] | None


@struct.dataclass
class DecodingCache:
    """The caches of all layers, which slots hold the hypotheses' tokens, and the padding mask of the source.

    The search reorders hypotheses at each step, but keys and values never move. Instead `slots` has, for each
    hypothesis and position, the slot in which the entry of its token is; -1 where it has no token yet. A hypothesis
    attends to all slots of its sentence, with a mask. That costs K times the scores, which are few beside the products
    with the weights, and saves two copies of the cache at each step.
    """

    layers: tuple[LayerCache, ...]
    slots: Int[Array, "B K L"]
    memory_mask: Bool[Array, "B 1 1 S"] | None

    def reorder(self, parents: Int[Array, "B K"]) -> "DecodingCache":
        """Returns the cache in which hypothesis k of a sentence continues hypothesis parents[k]."""
        return self.replace(slots=jnp.take_along_axis(self.slots, parents[:, :, None], axis=1))

    def take_slots(self, position: Int[Array, ""]) -> "DecodingCache":
        """Returns the cache in which hypothesis k has its token at `position` in slot k."""
        return self.replace(slots=self.slots.at[:, :, position].set(jnp.arange(self.slots.shape[1])[None]))

    @property
    def self_mask(self) -> Bool[Array, "B 1 K LK"]:
        """The entries of each hypothesis among those of all slots."""
        rows, beams, length = self.slots.shape
        return jax.nn.one_hot(self.slots, beams, dtype=bool).reshape(rows, 1, beams, length * beams)


def cached_self_attention(
    attention: MultiHeadAttention,
    x: Float[Array, "B K D"],
    position: Int[Array, ""],
    rotary_positions: Int[Array, "1 K"] | None,
    cache: LayerCache,
    mask: Bool[Array, "B 1 K LK"],
) -> tuple[Float[Array, "B K D"], LayerCache]:
    """Adds the new token of each hypothesis to the cache and attends to the entries that `mask` gives it."""
    keys, values = attention.project_keys_values(x, rotary_positions)
    cache = cache.replace(
        self_keys=update_cache(cache.self_keys, keys, position),
        self_values=update_cache(cache.self_values, values, position),
    )
    queries = attention.project_queries(x, rotary_positions)
    return attention.attend(queries, heads_first(cache.self_keys), heads_first(cache.self_values), mask), cache


def heads_first(x: Float[Array, "B L H d"]) -> Float[Array, "B H L d"]:
    """Returns the array in the layout of the cache, or one of the cache in that of attention."""
    return jnp.swapaxes(x, 1, 2)


def update_cache(
    cache: Float[Array, "B H LK d"], entries: Float[Array, "B K H d"], position: Int[Array, ""]
) -> Float[Array, "B H LK d"]:
    """Returns the cache with the entry of each hypothesis at `position`, in its own slot."""
    return jax.lax.dynamic_update_slice_in_dim(cache, heads_first(entries), position * entries.shape[1], axis=2)
