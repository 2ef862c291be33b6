"""Embeddings (section 3.4) and positional encodings (section 3.5)."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer.model.linear import flat_dot_general


class Embedding(nnx.Module):
    """A matrix of token vectors (V, D): rows on the way in, times sqrt(D); its transpose gives the logits."""

    def __init__(self, vocab_size: int, d_model: int, *, dtype: jnp.dtype, rngs: nnx.Rngs):
        initializer = nnx.initializers.normal(d_model**-0.5)
        self.table = nnx.Param(initializer(rngs.params(), (vocab_size, d_model), jnp.float32))
        self.dtype = dtype

    def __call__(self, tokens: Int[Array, "B L"]) -> Float[Array, "B L D"]:
        vectors = jnp.take(self.table[...], tokens, axis=0, mode="clip")
        return (vectors * math.sqrt(vectors.shape[-1])).astype(self.dtype)

    def logits(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Scores of every token, in float32."""
        table = self.table[...].astype(self.dtype)
        return flat_dot_general(x, table.T, preferred_element_type=jnp.float32)


class SinusoidalPositions(nnx.Module):
    """PE(pos, 2i) = sin(pos / base^(2i / D)), PE(pos, 2i + 1) = cos of the same (section 3.5).

    `concatenated` puts all sines before all cosines, as Marian does, instead of taking turns.
    """

    def __init__(self, d_model: int, *, concatenated: bool, base: float = 10_000.0):
        self.d_model = d_model
        self.concatenated = concatenated
        self.base = base

    def __call__(self, positions: Int[Array, "#B L"]) -> Float[Array, "#B L D"]:
        frequencies = self.base ** (-np.arange(0, self.d_model, 2) / self.d_model)
        angles = positions[..., None].astype(jnp.float32) * frequencies.astype(np.float32)[None, None]
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


def make_positions(kind: str, *, d_model: int, max_positions: int, rngs: nnx.Rngs) -> nnx.Module:
    """The positional encoding that `config.model.positions` names."""
    if kind == "learned":
        return LearnedPositions(d_model, max_positions=max_positions, rngs=rngs)
    return SinusoidalPositions(d_model, concatenated=kind == "sinusoidal_concatenated")
