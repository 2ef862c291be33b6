"""The keys and values that decoding keeps, and attention over them. K hypotheses ("beams") per sentence."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.model.attention import MultiHeadAttention
from transformer.model.kernels import batched_dtype, product_dtype
from transformer.model.layers import Layer


@struct.dataclass
class LayerCache:
    """Keys and values of one decoder layer, in the layout in which products read them.

    Self-attention's grow by one position per step, with an entry of each of K slots. The memory's are computed once,
    and the hypotheses of a sentence share them; a decoder without encoder has none.
    """

    self_keys: Float[Array, "B H dk LK"]
    self_values: Float[Array, "B H LK dv"]
    memory_keys: Float[Array, "B H dk S"] | None
    memory_values: Float[Array, "B H S dv"] | None

    @classmethod
    def start(
        cls, layer: Layer, d_model: int, memory: Float[Array, "B S D"] | None, rows: int, entries: int
    ) -> "LayerCache":
        """Returns a cache with room for `entries` keys and values of self-attention in each row."""
        attention, memory_keys, memory_values = layer.self_attention, None, None
        vector = jax.ShapeDtypeStruct((1, 1, d_model), product_dtype(attention.key.dtype))
        keys, values = jax.eval_shape(attention.project_keys_values, vector)
        (_, _, heads, d_k), d_v, dtype = keys.shape, values.shape[3], batched_dtype(keys.dtype)
        empty = jnp.zeros((rows, heads, d_k, entries), dtype), jnp.zeros((rows, heads, entries, d_v), dtype)
        if memory is not None:
            memory_keys, memory_values = _to_layout(*layer.cross_attention.project_keys_values(memory))
            # Without a barrier XLA changes the layout at each step, and not once.
            memory_keys, memory_values = jax.lax.optimization_barrier((memory_keys, memory_values))
        return cls(*empty, memory_keys, memory_values)

    def attend_self(
        self,
        attention: MultiHeadAttention,
        x: Float[Array, "B K D"],
        position: Int[Array, ""],
        rotary_positions: Int[Array, "1 K"] | None,
        mask: Bool[Array, "B 1 K LK"],
    ) -> tuple[Float[Array, "B K D"], "LayerCache"]:
        """Adds the new token of each hypothesis to the cache and attends to the entries that `mask` gives it."""
        keys, values = _to_layout(*attention.project_keys_values(x, rotary_positions))
        begin = position * x.shape[1]
        cache = self.replace(
            self_keys=jax.lax.dynamic_update_slice_in_dim(self.self_keys, keys, begin, axis=3),
            self_values=jax.lax.dynamic_update_slice_in_dim(self.self_values, values, begin, axis=2),
        )
        return _attend(attention, x, cache.self_keys, cache.self_values, mask, rotary_positions), cache

    def attend_memory(
        self, attention: MultiHeadAttention, x: Float[Array, "B K D"], mask: Bool[Array, "B 1 1 S"]
    ) -> Float[Array, "B K D"]:
        """Attends to the encoder's output."""
        return _attend(attention, x, self.memory_keys, self.memory_values, mask, None)


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

    @property
    def self_mask(self) -> Bool[Array, "B 1 K LK"]:
        """The entries of each hypothesis among those of all slots."""
        rows, beams, length = self.slots.shape
        return jax.nn.one_hot(self.slots, beams, dtype=bool).reshape(rows, 1, beams, length * beams)


def _attend(
    attention: MultiHeadAttention,
    x: Float[Array, "B K D"],
    keys: Float[Array, "B H dk N"],
    values: Float[Array, "B H N dv"],
    mask: Bool[Array, "B 1 #K N"],
    rotary_positions: Int[Array, "1 K"] | None,
) -> Float[Array, "B K D"]:
    queries = attention.project_queries(x, rotary_positions).astype(keys.dtype)
    return attention.attend(queries, keys.transpose(0, 3, 1, 2), values.swapaxes(1, 2), mask)


def _to_layout(
    keys: Float[Array, "B L H dk"], values: Float[Array, "B L H dv"]
) -> tuple[Float[Array, "B H dk L"], Float[Array, "B H L dv"]]:
    """Returns keys and values in the layout and the dtype of the cache."""
    dtype = batched_dtype(keys.dtype)
    return keys.transpose(0, 2, 3, 1).astype(dtype), values.swapaxes(1, 2).astype(dtype)
