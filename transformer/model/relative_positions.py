"""Relative positions in self-attention: rotations of queries and keys, or a term of their score."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer.config.types import Config, head_widths

BASE = 10_000.0  # of the wavelengths of sinusoids and rotations (section 3.5)
SHAW_DISTANCE = 16  # larger distances count as this one; the value of the paper's base model
T5_BUCKETS, T5_DISTANCE = 32, 128  # the last bucket has all distances from 128 on


class Relation(nnx.Module):
    """Base class, which changes nothing: for positions that are added to embeddings, and for
    cross-attention.
    """

    is_shared = False  # whether all layers of a stack have the same one
    # of the score: a function of queries (B, T, H, dk) and distances (B, T, S)
    term: Callable | None = None

    def rotate(
        self, x: Float[Array, "B L H dk"], positions: Int[Array, "#B L"] | None
    ) -> Float[Array, "B L H dk"]:
        """Returns the projected queries, or keys, at these positions as the score takes them."""
        return x

    def bias(
        self,
        queries: Float[Array, "B T H dk"],
        positions: Int[Array, "#B T"] | None,
        key_positions: Int[Array, "#B S"] | None,
    ) -> Float[Array, "#B H T S"] | None:
        """Returns the term to add to the scores, in float32, or None."""
        # The distance of a query at i and a key at j is j - i.
        return (
            None
            if self.term is None
            else self.term(queries, key_positions[:, None, :] - positions[:, :, None])
        )


UNRELATED = Relation()


class Rotary(Relation):
    """Rotates queries and keys by their positions, so that products depend on relative positions
    (Su et al. 2021).

    Elements i and d/2 + i form a plane, rotated by the i-th angle of a sinusoidal encoding of width
    d.
    """

    def rotate(
        self, x: Float[Array, "B L H dk"], positions: Int[Array, "#B L"] | None
    ) -> Float[Array, "B L H dk"]:
        planes = x.shape[-1] // 2
        angles = phases(positions, planes, planes)[:, :, None]
        sin, cos = jnp.sin(angles), jnp.cos(angles)
        first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        return jnp.concatenate(
            [first * cos - second * sin, second * cos + first * sin], axis=-1
        ).astype(x.dtype)


class Shaw(Relation):
    """q . a_(j - i) / sqrt(d_k), with a trained vector for each head and clipped distance (Shaw et
    al. 2018, eq. 4).

    Values have no such vectors, which gain nothing there (Table 3 of that paper).
    """

    def __init__(self, config: Config, rngs: nnx.Rngs):
        size, d_k = 2 * SHAW_DISTANCE + 1, head_widths(config)[0]
        bound = math.sqrt(6.0 / (size + d_k))
        shape = (config.num_heads, size, d_k)
        self.vectors = nnx.Param(
            jax.random.uniform(rngs.params(), shape, jnp.float32, -bound, bound)
        )

    def term(
        self, queries: Float[Array, "B T H dk"], distances: Int[Array, "#B T S"]
    ) -> Float[Array, "B H T S"]:
        scaled = queries.astype(jnp.float32) / math.sqrt(queries.shape[-1])
        by_distance = jnp.einsum("bthd,hnd->bhtn", scaled, self.vectors[...])
        distances = jnp.clip(distances, -SHAW_DISTANCE, SHAW_DISTANCE) + SHAW_DISTANCE
        return jnp.take_along_axis(by_distance, distances[:, None], axis=-1)


class Alibi(Relation):
    """-m_h |j - i|, where the slopes m_h of H heads are 2^(-8/H), 2^(-16/H) ... 2^-8 (Press et al.
    2022).
    """

    def term(
        self, queries: Float[Array, "B T H dk"], distances: Int[Array, "#B T S"]
    ) -> Float[Array, "#B H T S"]:
        num_heads = queries.shape[2]
        slopes = 2.0 ** (-8.0 * jnp.arange(1, num_heads + 1, dtype=jnp.float32) / num_heads)
        return -slopes[None, :, None, None] * jnp.abs(distances)[:, None]


class T5Bias(Relation):
    """A trained number for each head and bucket of distances; half of the buckets grow with the
    distance.

    Raffel et al. 2020, section 2.1. The encoder has buckets for both signs.
    """

    is_shared = True

    def __init__(self, config: Config, is_causal: bool, rngs: nnx.Rngs):
        initializer = nnx.initializers.normal(config.d_model**-0.5)
        self.table = nnx.Param(
            initializer(rngs.params(), (T5_BUCKETS, config.num_heads), jnp.float32)
        )
        self.is_causal = is_causal

    def term(
        self, queries: Float[Array, "B T H dk"], distances: Int[Array, "#B T S"]
    ) -> Float[Array, "#B H T S"]:
        buckets = t5_buckets(distances, self.is_causal)
        return jnp.moveaxis(jnp.take(self.table[...], buckets, axis=0), -1, 1)


def t5_buckets(distances: Int[Array, "*any"], is_causal: bool) -> Int[Array, "*any"]:
    """Returns the bucket of each distance: one for each of the shortest, then in equal parts of the
    logarithm.
    """
    buckets = T5_BUCKETS if is_causal else T5_BUCKETS // 2
    first = 0 if is_causal else jnp.where(distances > 0, buckets, 0)
    sizes = jnp.maximum(-distances, 0) if is_causal else jnp.abs(distances)
    exact = buckets // 2
    logarithms = jnp.log(jnp.maximum(sizes, exact) / exact) / math.log(T5_DISTANCE / exact)
    larger = exact + (logarithms * (buckets - exact)).astype(jnp.int32)
    return first + jnp.where(sizes < exact, sizes, jnp.minimum(larger, buckets - 1))


def phases(positions: Int[Array, "#B L"], planes: int, divisor: int) -> Float[Array, "#B L planes"]:
    """Returns the angles pos / BASE^(i / divisor), in radians, for i = 0 ... planes - 1."""
    frequencies = BASE ** (-np.arange(planes) / divisor)
    return positions[..., None].astype(jnp.float32) * frequencies.astype(np.float32)[None, None]
