"""Positional encodings, added to the embeddings (section 3.5) or applied in attention as rotations."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

BASE = 10_000.0  # of the wavelengths (section 3.5)


def _angles(positions: Int[Array, "#B L"], planes: int, divisor: int) -> Float[Array, "#B L planes"]:
    """Returns the angles pos / BASE^(i / divisor), in radians, for i = 0 ... planes - 1."""
    frequencies = BASE ** (-np.arange(planes) / divisor)
    return positions[..., None].astype(jnp.float32) * frequencies.astype(np.float32)[None, None]


class SinusoidalPositions(nnx.Module):
    """PE(pos, 2i) = sin(pos / BASE^(2i / D)), PE(pos, 2i + 1) = cos of the same (section 3.5).

    `concatenated` puts all sines before all cosines instead of interleaving them. `includes_base` divides i by D/2 - 1
    instead of D/2, so that the largest wavelength is that of BASE, as in Marian and tensor2tensor.
    """

    def __init__(self, d_model: int, *, concatenated: bool, includes_base: bool = False):
        self.d_model, self.concatenated = d_model, concatenated
        self.divisor = max(d_model // 2 - 1, 1) if includes_base else d_model // 2

    def __call__(self, positions: Int[Array, "#B L"]) -> Float[Array, "#B L D"]:
        angles = _angles(positions, self.d_model // 2, self.divisor)
        if self.concatenated:
            return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
        return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(*positions.shape, self.d_model)


class LearnedPositions(nnx.Module):
    """A trained table of vectors (Table 3, row E). Its initial deviation is 1, like that of scaled token embeddings."""

    def __init__(self, d_model: int, *, max_positions: int, rngs: nnx.Rngs):
        self.table = nnx.Param(jax.random.normal(rngs.params(), (max_positions, d_model), jnp.float32))

    def __call__(self, positions: Int[Array, "#B L"]) -> Float[Array, "#B L D"]:
        return jnp.take(self.table[...], positions, axis=0, mode="clip")


# (config.model, rngs) to the module whose result is added to the embeddings; None: self-attention rotates instead.
POSITIONS = {
    "sinusoidal": lambda config, rngs: SinusoidalPositions(config.d_model, concatenated=False),
    "sinusoidal_concatenated": lambda config, rngs: SinusoidalPositions(config.d_model, concatenated=True),
    "sinusoidal_marian": lambda config, rngs: SinusoidalPositions(
        config.d_model, concatenated=True, includes_base=True
    ),
    "learned": lambda config, rngs: LearnedPositions(config.d_model, max_positions=config.max_positions, rngs=rngs),
    "rotary": lambda config, rngs: None,
}


def rotate(x: Float[Array, "B L H d"], positions: Int[Array, "#B L"]) -> Float[Array, "B L H d"]:
    """Rotates queries or keys by their positions, so that products depend on relative positions (Su et al. 2021).

    Elements i and d/2 + i form a plane, rotated by the i-th angle of a sinusoidal encoding of width d.
    """
    planes = x.shape[-1] // 2
    angles = _angles(positions, planes, planes)[:, :, None]
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
