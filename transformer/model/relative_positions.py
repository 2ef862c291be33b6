"""Relative positions in self-attention: rotations of queries and keys, or biases of the scores."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer.config.types import Config, head_widths

BASE = 10_000.0  # of the wavelengths of sinusoids and rotations (section 3.5)
SHAW_DISTANCE = 16  # larger distances are clipped to this one; the value of the paper's base model
T5_BUCKETS = 32
T5_DISTANCE = 128  # the last bucket has all distances from this one on


Heads = Float[Array, "B T H dk"]
Positions = Int[Array, "#B T"]
KeyPositions = Int[Array, "#B S"]
ScoreBias = Float[Array, "#B H T S"]


class RelativePositions(nnx.Module):
    """Base class, and attention without relative positions: it changes nothing."""

    is_shared = False  # True: all layers of a stack share one object

    # Positions are None in cross-attention, which has no relative positions.
    def rotate(
        self,
        x: Heads,
        positions: Any,
    ) -> Heads:
        """Returns projected queries or keys at these positions, as the score takes them."""
        return x

    def score_bias(
        self,
        queries: Heads,
        positions: Any,
        key_positions: Any,
    ) -> ScoreBias | None:
        """Returns the bias that is added to the scores, in float32, or None."""
        return None


NO_RELATIVE_POSITIONS = RelativePositions()


class Rotary(RelativePositions):
    """Rotations by the position, so that q . k depends on relative positions (Su et al. 2021).

    Elements i and d/2 + i form a plane. Its angle is the i-th angle of a sinusoidal encoding of
    width d.
    """

    def rotate(
        self,
        x: Heads,
        positions: Positions,
    ) -> Heads:
        planes = x.shape[-1] // 2
        angles = phases(positions, planes, planes)[:, :, None]  # (B, L, 1, d_k / 2)
        sin = jnp.sin(angles)
        cos = jnp.cos(angles)

        # (first_i, second_i) is the point of x in plane i.
        first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        rotated = [first * cos - second * sin, second * cos + first * sin]
        return jnp.concatenate(rotated, axis=-1).astype(x.dtype)


class Shaw(RelativePositions):
    """q . a_(j - i) / sqrt(d_k) for a query at i and a key at j (Shaw et al. 2018, equation 4).

    Each head has a trained vector a for each clipped distance. Values have no such vectors, which
    gain nothing (Table 3 of that paper).
    """

    def __init__(self, model_config: Config, rngs: nnx.Rngs):
        size = 2 * SHAW_DISTANCE + 1
        d_k, _ = head_widths(model_config)
        bound = math.sqrt(6.0 / (size + d_k))
        shape = (model_config.num_heads, size, d_k)
        self.vectors = nnx.Param(
            jax.random.uniform(rngs.params(), shape, jnp.float32, -bound, bound)
        )

    def score_bias(
        self,
        queries: Heads,
        positions: Positions,
        key_positions: KeyPositions,
    ) -> ScoreBias:
        distances = _distances(positions, key_positions)
        scaled = queries.astype(jnp.float32) / math.sqrt(queries.shape[-1])
        # The score of each query with the vector of each distance, then the entry of each key.
        by_distance = jnp.einsum("bthd,hnd->bhtn", scaled, self.vectors[...])
        indices = jnp.clip(distances, -SHAW_DISTANCE, SHAW_DISTANCE) + SHAW_DISTANCE
        return jnp.take_along_axis(by_distance, indices[:, None], axis=-1)  # (B, H, T, S)


class Alibi(RelativePositions):
    """-m_h |j - i| for a query at i and a key at j (Press et al. 2022).

    The slopes m_h of H heads are 2^(-8/H), 2^(-16/H), ..., 2^-8.
    """

    def score_bias(
        self,
        queries: Heads,
        positions: Positions,
        key_positions: KeyPositions,
    ) -> ScoreBias:
        distances = _distances(positions, key_positions)
        # A geometric sequence, one slope for each head.
        num_heads = queries.shape[2]
        slopes = 2.0 ** (-8.0 * jnp.arange(1, num_heads + 1, dtype=jnp.float32) / num_heads)
        return -slopes[None, :, None, None] * jnp.abs(distances)[:, None]


class T5Bias(RelativePositions):
    """A trained number for each head and each bucket of distances (Raffel et al. 2020, 2.1)."""

    is_shared = True

    def __init__(self, model_config: Config, is_causal: bool, rngs: nnx.Rngs):
        initializer = nnx.initializers.normal(model_config.d_model**-0.5)
        self.table = nnx.Param(
            initializer(rngs.params(), (T5_BUCKETS, model_config.num_heads), jnp.float32)
        )
        self.is_causal = is_causal

    def score_bias(
        self,
        queries: Heads,
        positions: Positions,
        key_positions: KeyPositions,
    ) -> ScoreBias:
        buckets = t5_buckets(_distances(positions, key_positions), self.is_causal)
        biases = jnp.take(self.table[...], buckets, axis=0)  # (B, T, S, H)
        return jnp.moveaxis(biases, -1, 1)


class T5BiasPerLayer(T5Bias):
    """The same with other numbers in each layer, as in umT5 (Chung et al. 2023)."""

    is_shared = False


def _distances(
    positions: Positions,
    key_positions: KeyPositions,
) -> Int[Array, "#B T S"]:
    """Returns j - i for each query at i and each key at j."""
    return key_positions[:, None, :] - positions[:, :, None]


def t5_buckets(distances: Int[Array, "*any"], is_causal: bool) -> Int[Array, "*any"]:
    """Returns the bucket of each distance.

    The first half of the buckets have one distance each: 0, 1, 2, ... The second half splits larger
    distances into equal parts of their logarithm. An encoder has buckets for both signs.
    """
    # In a decoder no key is after the query. In an encoder keys after the query have the upper half
    # of the buckets.
    if is_causal:
        buckets = T5_BUCKETS
        first: Int[Array, "*any"] | int = 0
        sizes = jnp.maximum(-distances, 0)
    else:
        buckets = T5_BUCKETS // 2
        first = jnp.where(distances > 0, buckets, 0)
        sizes = jnp.abs(distances)

    # Half of the buckets of a sign are exact.
    exact = buckets // 2
    logarithms = jnp.log(jnp.maximum(sizes, exact) / exact) / math.log(T5_DISTANCE / exact)
    larger = exact + (logarithms * (buckets - exact)).astype(jnp.int32)
    return first + jnp.where(sizes < exact, sizes, jnp.minimum(larger, buckets - 1))


def phases(positions: Int[Array, "#B L"], planes: int, divisor: int) -> Float[Array, "#B L planes"]:
    """Returns the angles pos / BASE^(i / divisor), in radians, for i = 0 ... planes - 1."""
    # In float64 on the host: the table of frequencies is a constant of the program.
    frequencies = BASE ** (-np.arange(planes) / divisor)
    return positions[..., None].astype(jnp.float32) * frequencies.astype(np.float32)[None, None]
