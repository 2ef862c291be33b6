"""The keys, values and states that decoding keeps, and its steps over them. K hypotheses ("beams") per sentence."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx, struct
from jaxtyping import Array, Bool, Float, Int

from transformer.model.attention import MultiHeadAttention
from transformer.model.kernels import FLOAT32, batched_dtype, product_dtype
from transformer.model.layers import Layer
from transformer.model.ssru import Ssru

Shape = tuple[int, int, int, int]  # rows B, hypotheses K of a row, length of a hypothesis, D


@struct.dataclass
class KeyValueCache:
    """Keys and values of self-attention, which grow by one position per step, with an entry of each of K slots.

    They have the layout in which products read them.
    """

    keys: Float[Array, "B H dk LK"]
    values: Float[Array, "B H LK dv"]

    @classmethod
    def start(cls, attention: MultiHeadAttention, shape: Shape) -> "KeyValueCache":
        """Returns an empty cache."""
        rows, beams, length, d_model = shape
        vector = jax.ShapeDtypeStruct((1, 1, d_model), product_dtype(attention.key.dtype))
        keys, values = jax.eval_shape(attention.project_keys_values, vector)
        (_, _, heads, d_k), d_v, dtype = keys.shape, values.shape[3], batched_dtype(keys.dtype)
        entries = beams * length
        return cls(jnp.zeros((rows, heads, d_k, entries), dtype), jnp.zeros((rows, heads, entries, d_v), dtype))

    def step(
        self,
        attention: MultiHeadAttention,
        x: Float[Array, "B K D"],
        position: Int[Array, ""],
        rotary_positions: Int[Array, "1 K"] | None,
        mask: Bool[Array, "B 1 K LK"],
    ) -> tuple[Float[Array, "B K D"], "KeyValueCache"]:
        """Adds the new token of each hypothesis to the cache and attends to the entries that `mask` gives it."""
        keys, values = _to_layout(*attention.project_keys_values(x, rotary_positions))
        begin = position * x.shape[1]
        cache = self.replace(
            keys=jax.lax.dynamic_update_slice_in_dim(self.keys, keys, begin, axis=3),
            values=jax.lax.dynamic_update_slice_in_dim(self.values, values, begin, axis=2),
        )
        return _attend(attention, x, cache.keys, cache.values, mask, rotary_positions), cache

    def reorder(self, parents: Int[Array, "B K"]) -> "KeyValueCache":
        """Returns the same cache: `DecodingCache.slots` says where the entries of a hypothesis are."""
        return self


@struct.dataclass
class RecurrentCache:
    """The states of a recurrent unit in place of self-attention, one for each hypothesis."""

    states: Float[Array, "B K D"]

    @classmethod
    def start(cls, unit: Ssru, shape: Shape) -> "RecurrentCache":
        """Returns states of zeros."""
        rows, beams, _, d_model = shape
        return cls(jnp.zeros((rows, beams, d_model), FLOAT32))

    def step(self, unit: Ssru, x: Float[Array, "B K D"], *_: Any) -> tuple[Float[Array, "B K D"], "RecurrentCache"]:
        """Updates the states with the new token of each hypothesis. Only attention uses the other arguments."""
        out, states = unit.step(x, self.states)
        return out, self.replace(states=states)

    def reorder(self, parents: Int[Array, "B K"]) -> "RecurrentCache":
        """Returns the cache in which hypothesis k of a sentence continues hypothesis parents[k]."""
        return self.replace(states=jnp.take_along_axis(self.states, parents[:, :, None], axis=1))


class DecoderSelfAttention(NamedTuple):
    """A sub-layer by which a position of the decoder sees those before it, and its cache in decoding."""

    module: type[nnx.Module]
    cache: type[KeyValueCache | RecurrentCache]


DECODER_SELF_ATTENTIONS = {
    "attention": DecoderSelfAttention(MultiHeadAttention, KeyValueCache),
    "ssru": DecoderSelfAttention(Ssru, RecurrentCache),
}


@struct.dataclass
class LayerCache:
    """The cache of one decoder layer's self-attention, and the keys and values of the memory.

    The memory's are computed once, and the hypotheses of a sentence share them; a decoder without encoder has none.
    """

    self_attention: KeyValueCache | RecurrentCache
    memory_keys: Float[Array, "B H dk S"] | None
    memory_values: Float[Array, "B H S dv"] | None

    @classmethod
    def start(
        cls,
        layer: Layer,
        self_cache: type[KeyValueCache | RecurrentCache],
        memory: Float[Array, "B S D"] | None,
        shape: Shape,
    ) -> "LayerCache":
        """Returns the cache before the first token."""
        memory_keys, memory_values = None, None
        if memory is not None:
            memory_keys, memory_values = _to_layout(*layer.cross_attention.project_keys_values(memory))
            # Without a barrier XLA changes the layout at each step, and not once.
            memory_keys, memory_values = jax.lax.optimization_barrier((memory_keys, memory_values))
        return cls(self_cache.start(layer.self_attention, shape), memory_keys, memory_values)

    def attend_self(
        self, module: MultiHeadAttention | Ssru, x: Float[Array, "B K D"], *options: Any
    ) -> tuple[Float[Array, "B K D"], "LayerCache"]:
        """Applies the self-attention to the new token of each hypothesis. `options`: see `KeyValueCache.step`."""
        out, cache = self.self_attention.step(module, x, *options)
        return out, self.replace(self_attention=cache)

    def attend_memory(
        self, attention: MultiHeadAttention, x: Float[Array, "B K D"], mask: Bool[Array, "B 1 1 S"]
    ) -> Float[Array, "B K D"]:
        """Attends to the encoder's output."""
        return _attend(attention, x, self.memory_keys, self.memory_values, mask, None)

    def reorder(self, parents: Int[Array, "B K"]) -> "LayerCache":
        """Returns the cache in which hypothesis k of a sentence continues hypothesis parents[k]."""
        return self.replace(self_attention=self.self_attention.reorder(parents))


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
        return self.replace(
            layers=tuple(layer.reorder(parents) for layer in self.layers),
            slots=jnp.take_along_axis(self.slots, parents[:, :, None], axis=1),
        )

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
