"""The simpler simple recurrent unit (Kim et al. 2019), which can replace the decoder's self-attention."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from transformer.config_types import Config
from transformer.model.kernels import FLOAT32, product_dtype
from transformer.model.linear import Linear
from transformer.model.masks import Mask


class Ssru(nnx.Module):
    """h_t = max(0, c_t) with c_t = f_t * c_{t-1} + (1 - f_t) * (x_t W) and f_t = sigmoid(x_t W_f + b_f).

    The state c is zero before the first token of a sentence. It is float32 for every dtype of the products.
    """

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        d_model, options = config.d_model, {"dtype": config.dtype, "output_dtype": FLOAT32, "rngs": rngs}
        self.input = Linear(d_model, d_model, use_bias=False, **options)
        self.forget = Linear(d_model, d_model, **options)
        self.d_model, self.dtype = d_model, config.dtype

    def __call__(
        self,
        x: Float[Array, "B T D"],
        keys_values: Float[Array, "B T D"],
        mask: Mask,
        *_: Any,
    ) -> Float[Array, "B T D"]:
        """Maps whole rows, in which each segment of the mask starts again. Only attention uses the other arguments."""
        forget, increments = self._gates(x)
        return self._output(linear_recurrence(jnp.where(starts_segment(mask), 0.0, forget), increments))

    def step(
        self, x: Float[Array, "B K D"], state: Float[Array, "B K D"], position: Int[Array, ""]
    ) -> tuple[Float[Array, "B K D"], Float[Array, "B K D"]]:
        """Returns the outputs for one more token of each hypothesis, and the next states."""
        forget, increments = self._gates(x)
        state = forget * state + increments
        return self._output(state), state

    def _gates(self, x: Float[Array, "B L D"]) -> tuple[Float[Array, "B L D"], Float[Array, "B L D"]]:
        """Returns f and (1 - f) * (x W) in float32."""
        forget = jax.nn.sigmoid(self.forget(x))
        return forget, (1.0 - forget) * self.input(x)

    def _output(self, states: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        return jax.nn.relu(states).astype(product_dtype(self.dtype))


def starts_segment(mask: Mask) -> Bool[Array, "B T 1"]:
    """Returns which positions are the first of a sentence."""
    segments = mask.query_segments
    return (jnp.pad(segments[:, :-1], ((0, 0), (1, 0))) != segments)[..., None]


def linear_recurrence(decays: Float[Array, "B T #D"], increments: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """Returns c with c_t = decay_t * c_{t-1} + increment_t and c_{-1} = 0, in O(log T) parallel steps."""

    def compose(first, second):
        return second[0] * first[0], second[0] * first[1] + second[1]

    return jax.lax.associative_scan(compose, (decays, increments), axis=1)[1]
