"""Recurrent units that can replace the decoder's self-attention."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from transformer.config.types import Config
from transformer.model.layers import FeedForward
from transformer.model.linear import Linear
from transformer.model.masks import Mask
from transformer.model.matmul import FLOAT32, product_dtype
from transformer.model.partitioning import shard_rows


class RecurrentUnit(nnx.Module):
    """Base class: an output follows from a state s_t = decay_t * s_{t-1} + increment_t, which is 0
    before a sentence.

    States are float32 for every dtype of the products. `terms` returns decays and increments, and
    `output` what follows from the states.
    """

    def __call__(
        self,
        x: Float[Array, "B T D"],
        keys_values: Any,
        mask: Mask,
        rngs: nnx.Rngs | None = None,
        *_: Any,
    ) -> Float[Array, "B T D"]:
        """Maps whole rows, in which each segment of the mask starts again.

        Only attention uses the other arguments.
        """

        def compose(first, second):
            return second[0] * first[0], second[0] * first[1] + second[1]

        segments, (decays, increments) = mask.query_segments, self.terms(x)
        is_first = jnp.pad(segments[:, :-1], ((0, 0), (1, 0))) != segments  # of its sentence
        decays = jnp.where(is_first[..., None], 0.0, decays)
        # O(log T) parallel steps
        _, states = jax.lax.associative_scan(compose, (decays, increments), axis=1)
        return self.output(x, states, rngs)


class Ssru(RecurrentUnit):
    """The simpler simple recurrent unit (Kim et al. 2019).

    h_t = max(0, c_t) with c_t = f_t * c_{t-1} + (1 - f_t) * (x_t W) and f_t = sigmoid(x_t W_f +
    b_f).
    """

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        d_model, options = (
            config.d_model,
            {"dtype": config.dtype, "output_dtype": FLOAT32, "rngs": rngs},
        )
        self.input = Linear(d_model, d_model, use_bias=False, **options)
        self.forget = Linear(d_model, d_model, **options)
        self.state_width, self.dtype = d_model, config.dtype

    def terms(
        self, x: Float[Array, "B L D"]
    ) -> tuple[Float[Array, "B L D"], Float[Array, "B L D"]]:
        forget = jax.nn.sigmoid(self.forget(x))
        return forget, (1.0 - forget) * self.input(x)

    def output(
        self, x: Float[Array, "B L D"], states: Float[Array, "B L D"], rngs: Any
    ) -> Float[Array, "B L D"]:
        return jax.nn.relu(states).astype(product_dtype(self.dtype))


class AverageAttention(RecurrentUnit):
    """Average attention (Zhang et al. 2018, equations 1 to 4).

    i_t * x_t + f_t * g_t with g_t = FFN((x_1 + ... + x_t) / t) and gates i_t, f_t = sigmoid([x_t;
    g_t] W + b).
    """

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        d_model, options = (
            config.d_model,
            {"dtype": config.dtype, "output_dtype": FLOAT32, "rngs": rngs},
        )
        self.feed_forward = FeedForward(config, rngs=rngs)
        self.input = Linear(2 * d_model, d_model, **options)
        self.forget = Linear(2 * d_model, d_model, **options)
        self.state_width, self.dtype = d_model + 1, config.dtype

    def terms(
        self, x: Float[Array, "B L D"]
    ) -> tuple[Float[Array, "B L 1"], Float[Array, "B L D+1"]]:
        """Returns 1 and [x; 1], so that the state is the sum of the inputs and their number."""
        ones = jnp.ones((*x.shape[:2], 1), FLOAT32)
        return ones, jnp.concatenate([x.astype(FLOAT32), ones], axis=-1)

    def output(
        self, x: Float[Array, "B L D"], states: Float[Array, "B L D+1"], rngs: nnx.Rngs | None
    ) -> Float[Array, "B L D"]:
        averages = self.feed_forward((states[..., :-1] / states[..., -1:]).astype(x.dtype), rngs)
        # Without these constraints XLA partitions the concatenation wrongly if all axes of the mesh
        # are above 1.
        gate_inputs = jnp.concatenate([shard_rows(x), shard_rows(averages)], axis=-1)
        gated = (
            jax.nn.sigmoid(self.input(gate_inputs)) * x
            + jax.nn.sigmoid(self.forget(gate_inputs)) * averages
        )
        return gated.astype(product_dtype(self.dtype))
