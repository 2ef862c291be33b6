"""Positional encodings that are added to embeddings (section 3.5), and all kinds of positions."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer.config.types import Config
from transformer.model.relative_positions import (
    NO_RELATIVE_POSITIONS,
    Alibi,
    RelativePositions,
    Rotary,
    Shaw,
    T5Bias,
    T5BiasPerLayer,
    phases,
)


class SinusoidalPositions(nnx.Module):
    """Sinusoids of the position (section 3.5).

    PE(pos, 2i) = sin(pos / 10000^(2i / D)), PE(pos, 2i + 1) = cos(pos / 10000^(2i / D)).

    `concatenated` puts all sines before all cosines instead of interleaving them. `includes_base`
    divides i by D/2 - 1 instead of D/2. The largest wavelength is then exactly 10000 times the
    smallest, as in Marian and tensor2tensor.
    """

    def __init__(self, d_model: int, *, concatenated: bool, includes_base: bool = False):
        self.d_model = d_model
        self.concatenated = concatenated
        self.divisor = max(d_model // 2 - 1, 1) if includes_base else d_model // 2

    def __call__(self, positions: Int[Array, "#B L"]) -> Float[Array, "#B L D"]:
        # pos / 10000^(2i / D) for i = 0 ... D/2 - 1
        angles = phases(positions, self.d_model // 2, self.divisor)
        waves = [jnp.sin(angles), jnp.cos(angles)]
        if self.concatenated:
            return jnp.concatenate(waves, axis=-1)
        interleaved = jnp.stack(waves, axis=-1)  # (B, L, D / 2, 2)
        return interleaved.reshape(*positions.shape, self.d_model)


class LearnedPositions(nnx.Module):
    """A trained table of vectors (Table 3, row E).

    Its initial deviation is 1, like that of scaled token embeddings.
    """

    def __init__(self, d_model: int, *, max_positions: int, rngs: nnx.Rngs):
        self.table = nnx.Param(
            jax.random.normal(rngs.params(), (max_positions, d_model), jnp.float32)
        )

    def __call__(self, positions: Int[Array, "#B L"]) -> Float[Array, "#B L D"]:
        # Positions beyond the table have its last vector.
        return jnp.take(self.table[...], positions, axis=0, mode="clip")


# Constructors, functions of (config.model, is_causal, rngs). They return encodings to add to the
# embeddings, or relative positions for self-attention.
POSITIONS: dict[str, Callable[..., Any]] = {
    "sinusoidal": lambda model_config, *_: SinusoidalPositions(
        model_config.d_model, concatenated=False
    ),
    "sinusoidal_concatenated": lambda model_config, *_: SinusoidalPositions(
        model_config.d_model, concatenated=True
    ),
    "sinusoidal_marian": lambda model_config, *_: SinusoidalPositions(
        model_config.d_model, concatenated=True, includes_base=True
    ),
    "learned": lambda model_config, _, rngs: LearnedPositions(
        model_config.d_model, max_positions=model_config.max_positions, rngs=rngs
    ),
    "rotary": lambda *_: Rotary(),
    "shaw": lambda model_config, _, rngs: Shaw(model_config, rngs),
    "alibi": lambda *_: Alibi(),
    "t5": T5Bias,
    "t5_per_layer": T5BiasPerLayer,
}


def make_positions(
    model_config: Config,
    num_layers: int,
    *,
    is_causal: bool,
    rngs: nnx.Rngs,
) -> tuple[Callable | None, list[RelativePositions]]:
    """Returns the encoding that a stack adds to its embeddings, and relative positions by layer.

    The encoding is None if self-attention has relative positions.
    """
    make = functools.partial(POSITIONS[model_config.positions], model_config, is_causal, rngs)
    first = make()
    if not isinstance(first, RelativePositions):
        return first, [NO_RELATIVE_POSITIONS] * num_layers
    if first.is_shared:
        return None, [first] * num_layers
    return None, [first] + [make() for _ in range(num_layers - 1)]
