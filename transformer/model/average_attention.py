"""Average attention (Zhang et al. 2018), which can replace the decoder's self-attention."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer.config_types import Config
from transformer.model.kernels import FLOAT32, product_dtype
from transformer.model.layers import FeedForward
from transformer.model.linear import Linear
from transformer.model.masks import Mask
from transformer.model.ssru import linear_recurrence, starts_segment


class AverageAttention(nnx.Module):
    """i_t * x_t + f_t * g_t with g_t = FFN((x_1 + ... + x_t) / t) and gates i_t, f_t = sigmoid([x_t; g_t] W + b).

    Equations 1 to 4 of the paper. The sums are float32 for every dtype of the products.
    """

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.d_model, options = config.d_model, {"dtype": config.dtype, "output_dtype": FLOAT32, "rngs": rngs}
        self.feed_forward = FeedForward(config, rngs=rngs)
        self.input = Linear(2 * self.d_model, self.d_model, **options)
        self.forget = Linear(2 * self.d_model, self.d_model, **options)
        self.dtype = config.dtype

    def __call__(
        self,
        x: Float[Array, "B T D"],
        keys_values: Float[Array, "B T D"],
        mask: Mask,
        rngs: nnx.Rngs | None = None,
        *_: Any,
    ) -> Float[Array, "B T D"]:
        """Maps whole rows, in which each segment of the mask starts again. Only attention uses the other arguments."""
        ones = jnp.ones((*x.shape[:2], 1), FLOAT32)
        continues = jnp.where(starts_segment(mask), 0.0, ones)
        sums = linear_recurrence(continues, jnp.concatenate([x.astype(FLOAT32), ones], axis=-1))
        return self._output(x, sums[..., :-1] / sums[..., -1:], rngs)

    def step(
        self, x: Float[Array, "B K D"], state: Float[Array, "B K D"], position: Int[Array, ""]
    ) -> tuple[Float[Array, "B K D"], Float[Array, "B K D"]]:
        """Returns the outputs for one more token of each hypothesis, and the next sums."""
        state = state + x.astype(FLOAT32)
        return self._output(x, state / (position + 1), None), state

    def _output(
        self, x: Float[Array, "B L D"], averages: Float[Array, "B L D"], rngs: nnx.Rngs | None
    ) -> Float[Array, "B L D"]:
        averages = self.feed_forward(averages.astype(x.dtype), rngs)
        both = jnp.concatenate([x, averages], axis=-1)
        gated = jax.nn.sigmoid(self.input(both)) * x + jax.nn.sigmoid(self.forget(both)) * averages
        return gated.astype(product_dtype(self.dtype))
