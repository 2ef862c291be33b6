"""Positions: encodings that are added to the embeddings (section 3.5), or rotations in attention in their place."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

BASE = 10_000.0  # of the wavelengths (section 3.5)


def positions_of(tokens: Int[Array, "B L"]) -> Int[Array, "1 L"]:
    """Positions in rows that hold one sentence each, from 0."""
    return jnp.arange(tokens.shape[1])[None]


def angles_of(positions: Int[Array, "#B L"], width: int, base: float) -> Float[Array, "#B L planes"]:
    """pos / base^(2i / width) radians for the planes i = 0 ... width / 2 - 1."""
    frequencies = base ** (-np.arange(0, width, 2) / width)
    return positions[..., None].astype(jnp.float32) * frequencies.astype(np.float32)[None, None]


class SinusoidalPositions(nnx.Module):
    """PE(pos, 2i) = sin(pos / base^(2i / D)), PE(pos, 2i + 1) = cos of the same (section 3.5).

    `concatenated` puts all sines before all cosines, as Marian does, instead of taking turns.
    """

    def __init__(self, d_model: int, *, concatenated: bool, base: float = BASE):
        self.d_model = d_model
        self.concatenated = concatenated
        self.base = base

    def __call__(self, positions: Int[Array, "#B L"]) -> Float[Array, "#B L D"]:
        angles = angles_of(positions, self.d_model, self.base)
        if self.concatenated:
            return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
        return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(*positions.shape, self.d_model)


class LearnedPositions(nnx.Module):
    """A table of position vectors, trained like the rest (Table 3, row E). It ends at `max_positions`.

    Drawn with a deviation of 1, which is what scaled token embeddings have.
    """

    def __init__(self, d_model: int, *, max_positions: int, rngs: nnx.Rngs):
        self.table = nnx.Param(jax.random.normal(rngs.params(), (max_positions, d_model), jnp.float32))

    def __call__(self, positions: Int[Array, "#B L"]) -> Float[Array, "#B L D"]:
        return jnp.take(self.table[...], positions, axis=0, mode="clip")


def make_positions(kind: str, *, d_model: int, max_positions: int, rngs: nnx.Rngs) -> nnx.Module | None:
    """What `config.model.positions` adds to the embeddings; None if attention alone is told of positions."""
    if kind == "rotary":
        return None
    if kind == "learned":
        return LearnedPositions(d_model, max_positions=max_positions, rngs=rngs)
    return SinusoidalPositions(d_model, concatenated=kind == "sinusoidal_concatenated")


def rotate(x: Float[Array, "B L H d"], positions: Int[Array, "#B L"]) -> Float[Array, "B L H d"]:
    """Queries or keys, each turned by its position, so that their products depend on distances (Su et al. 2021).

    Elements i and d/2 + i are the plane that turns by the i-th angle of a sinusoidal encoding of width d.
    """
    angles = angles_of(positions, x.shape[-1], BASE)[:, :, None]
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
