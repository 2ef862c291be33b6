"""Positional encodings that are added to the embeddings (section 3.5), and the table of all kinds
of positions.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer.config.types import Config
from transformer.model.relative_positions import (
    UNRELATED,
    Alibi,
    Relation,
    Rotary,
    Shaw,
    T5Bias,
    phases,
)


class SinusoidalPositions(nnx.Module):
    """PE(pos, 2i) = sin(pos / BASE^(2i / D)), PE(pos, 2i + 1) = cos of the same (section 3.5).

    `concatenated` puts all sines before all cosines instead of interleaving them. `includes_base`
    divides i by D/2 - 1 instead of D/2, so that the largest wavelength is that of BASE, as in
    Marian and tensor2tensor.
    """

    def __init__(self, d_model: int, *, concatenated: bool, includes_base: bool = False):
        self.d_model, self.concatenated = d_model, concatenated
        self.divisor = max(d_model // 2 - 1, 1) if includes_base else d_model // 2

    def __call__(self, positions: Int[Array, "#B L"]) -> Float[Array, "#B L D"]:
        angles = phases(positions, self.d_model // 2, self.divisor)
        if self.concatenated:
            return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
        return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(
            *positions.shape, self.d_model
        )


class LearnedPositions(nnx.Module):
    """A trained table of vectors (Table 3, row E).

    Its initial deviation is 1, like that of scaled token embeddings.
    """

    def __init__(self, d_model: int, *, max_positions: int, rngs: nnx.Rngs):
        self.table = nnx.Param(
            jax.random.normal(rngs.params(), (max_positions, d_model), jnp.float32)
        )

    def __call__(self, positions: Int[Array, "#B L"]) -> Float[Array, "#B L D"]:
        return jnp.take(self.table[...], positions, axis=0, mode="clip")


# Constructors, from (config.model, is_causal, rngs), of encodings to add to the embeddings and of
# relations for self-attention.
POSITIONS = {
    "sinusoidal": lambda config, *_: SinusoidalPositions(config.d_model, concatenated=False),
    "sinusoidal_concatenated": lambda config, *_: SinusoidalPositions(
        config.d_model, concatenated=True
    ),
    "sinusoidal_marian": lambda config, *_: SinusoidalPositions(
        config.d_model, concatenated=True, includes_base=True
    ),
    "learned": lambda config, _, rngs: LearnedPositions(
        config.d_model, max_positions=config.max_positions, rngs=rngs
    ),
    "rotary": lambda *_: Rotary(),
    "shaw": lambda config, _, rngs: Shaw(config, rngs),
    "alibi": lambda *_: Alibi(),
    "t5": lambda config, is_causal, rngs: T5Bias(config, is_causal, rngs),
}


def make_positions(
    config: Config, num_layers: int, *, is_causal: bool, rngs: nnx.Rngs
) -> tuple[Callable | None, list[Relation]]:
    """Returns the encoding that a stack adds to its embeddings, or None, and the relation of each
    layer.
    """
    make = functools.partial(POSITIONS[config.positions], config, is_causal, rngs)
    first = make()
    if not isinstance(first, Relation):
        return first, [UNRELATED] * num_layers
    return None, [first, *(first if first.is_shared else make() for _ in range(num_layers - 1))]
