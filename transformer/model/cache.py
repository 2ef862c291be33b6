"""The keys, values and states that decoding keeps, and its steps over them.

K hypotheses ("beams") per sentence.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.model.attention import MultiHeadAttention
from transformer.model.matmul import FLOAT32, batched_dtype
from transformer.model.recurrent import AverageAttention, RecurrentUnit, Ssru
from transformer.model.relative_positions import UNRELATED, Relation


@struct.dataclass
class KeyValueCache:
    """Keys and values of N positions, in the layout and the dtype in which products read them."""

    keys: Float[Array, "B G dk N"]
    values: Float[Array, "B G N dv"]

    @classmethod
    def start(
        cls, attention: MultiHeadAttention, rows: int, beams: int, length: int
    ) -> "KeyValueCache":
        """Returns an empty cache of self-attention: an entry of each of K slots for each of L
        positions.
        """
        entries = jax.ShapeDtypeStruct((rows, beams * length, attention.key.in_features), FLOAT32)
        return cls(*map(jnp.zeros_like, jax.eval_shape(lambda x: project(attention, x), entries)))

    def step(
        self,
        attention: MultiHeadAttention,
        x: Float[Array, "B K D"],
        position: Int[Array, ""],
        relation: Relation,
        mask: Bool[Array, "B 1 K N"],
    ) -> tuple[Float[Array, "B K D"], "KeyValueCache"]:
        """Adds the new token of each hypothesis to the cache and attends to the entries that `mask`
        gives it.
        """
        beams = x.shape[1]
        positions, key_positions = (
            jnp.full((1, beams), position),
            jnp.arange(mask.shape[-1])[None] // beams,
        )
        (keys, values), begin = project(attention, x, relation, positions), position * beams
        cache = KeyValueCache(
            jax.lax.dynamic_update_slice_in_dim(self.keys, keys, begin, axis=3),
            jax.lax.dynamic_update_slice_in_dim(self.values, values, begin, axis=2),
        )
        queries = attention.project_queries(x, relation, positions)
        return cache.attend(
            attention, queries, mask, relation.bias(queries, positions, key_positions)
        ), cache

    def attend(
        self,
        attention: MultiHeadAttention,
        queries: Float[Array, "B K H dk"],
        mask: Bool[Array, "B 1 #K N"],
        bias: Float[Array, "#B H K N"] | None = None,
    ) -> Float[Array, "B K D"]:
        """Attends to the entries that `mask` gives to each hypothesis."""
        keys, values = self.keys.transpose(0, 3, 1, 2), self.values.swapaxes(1, 2)
        return attention.attend(queries.astype(keys.dtype), keys, values, mask, bias)

    def reorder(self, parents: Int[Array, "B K"]) -> "KeyValueCache":
        """Returns the same cache: `DecodingCache.slots` says where the entries of a hypothesis are."""
        return self


@struct.dataclass
class RecurrentCache:
    """The states of a recurrent unit, or the sums of averages, in place of self-attention: one for
    each hypothesis.
    """

    states: Float[Array, "B K _"]

    @classmethod
    def start(cls, unit: RecurrentUnit, rows: int, beams: int, length: int) -> "RecurrentCache":
        """Returns states of zeros."""
        return cls(jnp.zeros((rows, beams, unit.state_width), FLOAT32))

    def step(
        self, unit: RecurrentUnit, x: Float[Array, "B K D"], *_: Any
    ) -> tuple[Float[Array, "B K D"], "RecurrentCache"]:
        """Updates the states with the new token of each hypothesis.

        Only attention uses the other arguments.
        """
        decays, increments = unit.terms(x)
        states = decays * self.states + increments
        return unit.output(x, states, None), RecurrentCache(states)

    def reorder(self, parents: Int[Array, "B K"]) -> "RecurrentCache":
        """Returns the cache in which hypothesis k of a sentence continues hypothesis parents[k]."""
        return RecurrentCache(jnp.take_along_axis(self.states, parents[:, :, None], axis=1))


# The sub-layer by which a position of the decoder sees those before it, and its cache in decoding.
DECODER_SELF_ATTENTIONS = {
    "attention": (MultiHeadAttention, KeyValueCache),
    "ssru": (Ssru, RecurrentCache),
    "average": (AverageAttention, RecurrentCache),
}


@struct.dataclass
class DecodingCache:
    """The caches of all layers, which slots hold the hypotheses' tokens, and the padding mask of
    the source.

    The search reorders hypotheses at each step, but keys and values never move. Instead `slots`
    has, for each hypothesis and position, the slot in which the entry of its token is; -1 where it
    has no token yet. A hypothesis attends to all slots of its sentence, with a mask. That costs K
    times the scores, which are few beside the products with the weights, and saves two copies of
    the cache at each step.

    A decoder without encoder has no memories. A language model keeps the prompts that its
    hypotheses begin with.
    """

    slots: Int[Array, "B K L"]
    self_attentions: tuple[KeyValueCache | RecurrentCache, ...]
    memories: tuple[KeyValueCache | None, ...]
    memory_mask: Bool[Array, "B 1 1 S"] | None
    prompt: Int[Array, "B S"] | None = None

    def reorder(self, parents: Int[Array, "B K"]) -> "DecodingCache":
        """Returns the cache in which hypothesis k of a sentence continues hypothesis parents[k]."""
        return self.replace(
            slots=jnp.take_along_axis(self.slots, parents[:, :, None], axis=1),
            self_attentions=tuple(cache.reorder(parents) for cache in self.self_attentions),
        )

    @property
    def self_mask(self) -> Bool[Array, "B 1 K LK"]:
        """The entries of each hypothesis among those of all slots."""
        rows, beams, length = self.slots.shape
        return jax.nn.one_hot(self.slots, beams, dtype=bool).reshape(rows, 1, beams, length * beams)


def project(
    attention: MultiHeadAttention,
    x: Float[Array, "B N D"],
    relation: Relation = UNRELATED,
    positions: Int[Array, "#B N"] | None = None,
) -> tuple[Float[Array, "B G dk N"], Float[Array, "B G N dv"]]:
    """Returns the keys and values of x in the layout and the dtype of the cache."""
    keys, values = attention.project_keys_values(x, relation, positions)
    dtype = batched_dtype(keys.dtype)
    return keys.transpose(0, 2, 3, 1).astype(dtype), values.swapaxes(1, 2).astype(dtype)
