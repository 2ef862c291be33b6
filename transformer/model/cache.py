"""The keys and values that decoding keeps, and self-attention over them. K hypotheses ("beams") per sentence."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.model.attention import MultiHeadAttention


@struct.dataclass
class LayerCache:
    """Keys and values of one decoder layer.

    Those of self-attention grow by one position per step. Those of the encoder's output are computed once, and the
    hypotheses of a sentence share them; a decoder without encoder has none.
    """

    self_keys: Float[Array, "B K L H dk"]
    self_values: Float[Array, "B K L H dv"]
    memory_keys: Float[Array, "B S H dk"] | None
    memory_values: Float[Array, "B S H dv"] | None


@struct.dataclass
class DecodingCache:
    """The caches of all layers and the padding mask of the source."""

    layers: tuple[LayerCache, ...]
    memory_mask: Bool[Array, "B 1 1 S"] | None

    def reorder(self, parents: Int[Array, "B K"]) -> "DecodingCache":
        """Returns the cache in which hypothesis k of a sentence continues hypothesis parents[k]."""

        def gather(x: Array) -> Array:
            return jax.vmap(lambda rows, index: rows[index])(x, parents)

        layers = [
            layer.replace(self_keys=gather(layer.self_keys), self_values=gather(layer.self_values))
            for layer in self.layers
        ]
        return self.replace(layers=tuple(layers))


def cached_self_attention(
    attention: MultiHeadAttention,
    x: Float[Array, "B K D"],
    position: Int[Array, ""],
    rotary_positions: Int[Array, "1 1"] | None,
    cache: LayerCache,
) -> tuple[Float[Array, "B K D"], LayerCache]:
    """Adds the new token of each hypothesis to the cache and attends to all tokens up to it."""
    rows = x.reshape(-1, 1, x.shape[-1])
    keys, values = attention.project_keys_values(rows, rotary_positions)
    cache = cache.replace(
        self_keys=update_cache(cache.self_keys, keys, position),
        self_values=update_cache(cache.self_values, values, position),
    )
    keys, values = (array.reshape(-1, *array.shape[2:]) for array in (cache.self_keys, cache.self_values))
    mask = (jnp.arange(keys.shape[1]) <= position)[None, None, None]
    out = attention.attend(attention.project_queries(rows, rotary_positions), keys, values, mask)
    return out.reshape(x.shape), cache


def update_cache(
    cache: Float[Array, "B K L H d"], entry: Float[Array, "BK 1 H d"], position: Int[Array, ""]
) -> Float[Array, "B K L H d"]:
    """Returns the cache with the entry of each hypothesis at `position`."""
    entry = entry.reshape(*cache.shape[:2], *entry.shape[1:])
    return jax.lax.dynamic_update_slice_in_dim(cache, entry, position, axis=2)
