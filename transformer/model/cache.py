"""Caches of decoding: keys, values and recurrent states, and the steps over them.

K is the number of hypotheses ("beams") per sentence.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx, struct
from jaxtyping import Array, Bool, Float, Int

from transformer.model.attention import MultiHeadAttention
from transformer.model.matmul import FLOAT32, batched_dtype
from transformer.model.recurrent import AverageAttention, RecurrentUnit, Ssru
from transformer.model.relative_positions import NO_RELATIVE_POSITIONS, RelativePositions

# On CPUs, self-attention reads a cache in up to MAX_PARTS parts of at least PART_ENTRIES entries.
# Every part makes a program longer, which takes time to compile.
PART_ENTRIES = 256
MAX_PARTS = 8

Vectors = Float[Array, "B K D"]  # one for each hypothesis


@struct.dataclass
class KeyValueCache:
    """Keys and values of N entries, in the layout and the dtype in which matmuls read them."""

    keys: Float[Array, "B G dk N"]
    values: Float[Array, "B G N dv"]

    @classmethod
    def start(
        cls,
        attention: MultiHeadAttention,
        rows: int,
        beams: int,
        length: int,
    ) -> "KeyValueCache":
        """Returns a cache of zeros for self-attention, with an entry for each position and beam."""
        # Shapes and dtypes follow from a projection, which is traced but not computed.
        entries = jax.ShapeDtypeStruct((rows, beams * length, attention.key.in_features), FLOAT32)
        keys, values = jax.eval_shape(lambda x: project(attention, x), entries)
        return cls(jnp.zeros_like(keys), jnp.zeros_like(values))

    def step(
        self,
        attention: MultiHeadAttention,
        x: Vectors,
        position: Int[Array, ""],
        relative_positions: RelativePositions,
        mask: Bool[Array, "B 1 K N"],
    ) -> tuple[Vectors, "KeyValueCache"]:
        """Adds the new token of each hypothesis, and attends to the entries under `mask`."""
        beams = x.shape[1]
        positions = jnp.full((1, beams), position)
        key_positions = jnp.arange(mask.shape[-1])[None] // beams

        # Entry position * K + k is the token at `position` in slot k.
        keys, values = project(attention, x, relative_positions, positions)
        first = position * beams
        cache = KeyValueCache(
            jax.lax.dynamic_update_slice_in_dim(self.keys, keys, first, axis=3),
            jax.lax.dynamic_update_slice_in_dim(self.values, values, first, axis=2),
        )

        # The mask includes the new token itself.
        queries = attention.project_queries(x, relative_positions, positions)
        bias = relative_positions.score_bias(queries, positions, key_positions)
        return cache.attend_prefix(attention, queries, mask, bias, first + beams), cache

    def attend_prefix(
        self,
        attention: MultiHeadAttention,
        queries: Float[Array, "B K H dk"],
        mask: Bool[Array, "B 1 K N"],
        bias: Float[Array, "#B H K N"] | None,
        num_entries: Int[Array, ""],
    ) -> Vectors:
        """Attends as `attend`. The entries from `num_entries` on are masked.

        On CPUs, reads only the parts of the cache that have entries: most outputs are much shorter
        than their limit. On other devices the branches would cost more.
        """
        total = mask.shape[-1]
        # The size in an exported program is known only when it runs.
        if not isinstance(total, int) or total < 2 * PART_ENTRIES:
            return self.attend(attention, queries, mask, bias)
        num_parts = min(total // PART_ENTRIES, MAX_PARTS)
        sizes = [-(-total * part // num_parts) for part in range(1, num_parts + 1)]

        def attend_first(size, queries, mask, bias, keys, values):
            cache = KeyValueCache(keys[..., :size], values[:, :, :size])
            bias = None if bias is None else bias[..., :size]
            return cache.attend(attention, queries, mask[..., :size], bias)

        def attend_filled(*arrays):
            index = (num_entries - 1) * num_parts // total
            return jax.lax.switch(index, branches, *arrays)

        branches = [functools.partial(attend_first, size) for size in sizes]
        arrays = (queries, mask, bias, self.keys, self.values)
        return jax.lax.platform_dependent(*arrays, cpu=attend_filled, default=branches[-1])

    def attend(
        self,
        attention: MultiHeadAttention,
        queries: Float[Array, "B K H dk"],
        mask: Bool[Array, "B 1 #K N"],
        bias: Float[Array, "#B H K N"] | None = None,
    ) -> Vectors:
        """Attends from each hypothesis to the entries under `mask`."""
        keys = self.keys.transpose(0, 3, 1, 2)  # (B, N, G, d_k)
        values = self.values.swapaxes(1, 2)  # (B, N, G, d_v)
        return attention.attend(queries.astype(keys.dtype), keys, values, mask, bias)

    def reorder(self, parents: Int[Array, "B K"]) -> "KeyValueCache":
        """Returns the cache unchanged: `DecodingCache.slots` maps hypotheses to entries."""
        return self


@struct.dataclass
class RecurrentCache:
    """The states of a `RecurrentUnit`, one for each hypothesis."""

    states: Float[Array, "B K _"]

    @classmethod
    def start(cls, unit: RecurrentUnit, rows: int, beams: int, length: int) -> "RecurrentCache":
        """Returns states of zeros."""
        return cls(jnp.zeros((rows, beams, unit.state_width), FLOAT32))

    def step(
        self,
        unit: RecurrentUnit,
        x: Vectors,
        *_: Any,
    ) -> tuple[Vectors, "RecurrentCache"]:
        """Updates the states with the new token of each hypothesis.

        The other arguments are those of `KeyValueCache.step` and have no effect.
        """
        # s_t = decay_t * s_{t-1} + increment_t
        decays, increments = unit.terms(x)
        states = decays * self.states + increments
        return unit.output(x, states, None), RecurrentCache(states)

    def reorder(self, parents: Int[Array, "B K"]) -> "RecurrentCache":
        """Returns the cache after hypothesis k of a sentence continues hypothesis parents[k]."""
        return RecurrentCache(jnp.take_along_axis(self.states, parents[:, :, None], axis=1))


# The sub-layer that gives a position of the decoder its past, and its cache in decoding.
DECODER_SELF_ATTENTIONS: dict[str, tuple[Callable[..., nnx.Module], Any]] = {
    "attention": (MultiHeadAttention, KeyValueCache),
    "ssru": (Ssru, RecurrentCache),
    "average": (AverageAttention, RecurrentCache),
}


@struct.dataclass
class DecodingCache:
    """The caches of all layers, the slots of the hypotheses' tokens, and the mask of the source.

    The search reorders hypotheses at each step, but keys and values never move. Instead `slots` has
    the slot of each hypothesis's token at each position, or -1 before there is one. A hypothesis
    attends to all slots of its sentence, with a mask. That multiplies the scores by K, which cost
    little beside the matmuls with the weights, and saves two copies of the cache at each step.

    A decoder without an encoder has no memories.
    """

    slots: Int[Array, "B K L"]
    self_attentions: tuple[KeyValueCache | RecurrentCache, ...]
    memories: tuple[KeyValueCache | None, ...]
    memory_mask: Bool[Array, "B 1 1 S"] | None

    def reorder(self, parents: Int[Array, "B K"]) -> "DecodingCache":
        """Returns the cache after hypothesis k of a sentence continues hypothesis parents[k]."""
        return dataclasses.replace(
            self,
            slots=jnp.take_along_axis(self.slots, parents[:, :, None], axis=1),
            self_attentions=tuple(cache.reorder(parents) for cache in self.self_attentions),
        )

    @property
    def self_mask(self) -> Bool[Array, "B 1 K LK"]:
        """True for the entries of each hypothesis, among the entries of all slots."""
        rows, beams, length = self.slots.shape
        # A slot of -1 gives zeros.
        is_own_slot = jax.nn.one_hot(self.slots, beams, dtype=bool)  # (B, K, L, K)
        return is_own_slot.reshape(rows, 1, beams, length * beams)


def project(
    attention: MultiHeadAttention,
    x: Float[Array, "B N D"],
    relative_positions: RelativePositions = NO_RELATIVE_POSITIONS,
    positions: Int[Array, "#B N"] | None = None,
) -> tuple[Float[Array, "B G dk N"], Float[Array, "B G N dv"]]:
    """Returns the keys and values of x in the layout and the dtype of the cache."""
    keys, values = attention.project_keys_values(x, relative_positions, positions)
    dtype = batched_dtype(keys.dtype)
    keys = keys.transpose(0, 2, 3, 1).astype(dtype)  # (B, G, d_k, N)
    values = values.swapaxes(1, 2).astype(dtype)  # (B, G, N, d_v)
    return keys, values
