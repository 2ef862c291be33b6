"""Recurrent units that can replace the decoder's self-attention."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from transformer.config.types import Config
from transformer.model.layers import FeedForward
from transformer.model.linear import Linear
from transformer.model.masks import Mask
from transformer.model.matmul import FLOAT32, matmul_dtype
from transformer.model.partitioning import shard_rows

Vectors = Float[Array, "B L D"]
States = Float[Array, "B L W"]


class RecurrentUnit(nnx.Module):
    """Base class of units with a state s_t = decay_t * s_{t-1} + increment_t.

    The state is 0 before a sentence, and float32 whatever the dtype of matmuls. Subclasses define
    `terms`, which returns decays and increments, and `output`, a function of the states.
    """

    state_width: int
    terms: Callable[[Vectors], tuple[States, States]]
    output: Callable[[Vectors, States, nnx.Rngs | None], Vectors]

    def __call__(
        self,
        x: Vectors,
        keys_values: Any,
        mask: Mask,
        rngs: nnx.Rngs | None = None,
        *_: Any,
    ) -> Vectors:
        """Maps whole rows. The state restarts from 0 in each segment of the mask.

        The other arguments are those of attention and have no effect.
        """

        # The composition of s -> a s + b and then s -> c s + d is s -> c a s + (c b + d).
        def compose(first, second):
            return second[0] * first[0], second[0] * first[1] + second[1]

        decays, increments = self.terms(x)

        # The first token of a sentence has the decay 0, which forgets the sentence before.
        segments = mask.query_segments
        before = jnp.pad(segments[:, :-1], ((0, 0), (1, 0)))
        is_first = before != segments
        decays = jnp.where(is_first[..., None], 0.0, decays)

        # O(log T) parallel steps
        _, states = jax.lax.associative_scan(compose, (decays, increments), axis=1)
        return self.output(x, states, rngs)


class Ssru(RecurrentUnit):
    """The simpler simple recurrent unit (Kim et al. 2019).

    h_t = max(0, c_t), c_t = f_t * c_{t-1} + (1 - f_t) * (x_t W), f_t = sigmoid(x_t W_f + b_f).
    """

    def __init__(self, model_config: Config, *, rngs: nnx.Rngs):
        d_model = model_config.d_model
        options = {"dtype": model_config.dtype, "output_dtype": FLOAT32, "rngs": rngs}
        self.input = Linear(d_model, d_model, use_bias=False, **options)
        self.forget = Linear(d_model, d_model, **options)
        self.state_width = d_model
        self.dtype = model_config.dtype

    def terms(self, x: Vectors) -> tuple[Vectors, Vectors]:
        forget = jax.nn.sigmoid(self.forget(x))
        return forget, (1.0 - forget) * self.input(x)

    def output(self, x: Vectors, states: Vectors, rngs: Any) -> Vectors:
        return jax.nn.relu(states).astype(matmul_dtype(self.dtype))


class AverageAttention(RecurrentUnit):
    """Average attention (Zhang et al. 2018, equations 1 to 4).

    i_t * x_t + f_t * g_t with g_t = FFN((x_1 + ... + x_t) / t)
    and gates i_t = sigmoid([x_t; g_t] W_i + b_i), f_t = sigmoid([x_t; g_t] W_f + b_f).
    """

    def __init__(self, model_config: Config, *, rngs: nnx.Rngs):
        d_model = model_config.d_model
        options = {"dtype": model_config.dtype, "output_dtype": FLOAT32, "rngs": rngs}
        self.feed_forward = FeedForward(model_config, rngs=rngs)
        self.input = Linear(2 * d_model, d_model, **options)
        self.forget = Linear(2 * d_model, d_model, **options)
        self.state_width = d_model + 1
        self.dtype = model_config.dtype

    def terms(self, x: Vectors) -> tuple[Float[Array, "B L 1"], Float[Array, "B L D+1"]]:
        """Returns 1 and [x; 1], so that the state is the sum of the inputs and their number."""
        ones = jnp.ones((*x.shape[:2], 1), FLOAT32)
        return ones, jnp.concatenate([x.astype(FLOAT32), ones], axis=-1)

    def output(
        self,
        x: Vectors,
        states: Float[Array, "B L D+1"],
        rngs: nnx.Rngs | None,
    ) -> Vectors:
        # g_t: the FFN of the average, which is the sum of the inputs over their number.
        averages = (states[..., :-1] / states[..., -1:]).astype(x.dtype)
        averages = self.feed_forward(averages, rngs)

        # The gates i_t and f_t see [x_t; g_t]. Without the constraints, XLA partitions the
        # concatenation wrongly if all axes of the mesh are above 1.
        gate_inputs = jnp.concatenate([shard_rows(x), shard_rows(averages)], axis=-1)  # (B, L, 2 D)
        gated_x = jax.nn.sigmoid(self.input(gate_inputs)) * x
        gated_averages = jax.nn.sigmoid(self.forget(gate_inputs)) * averages
        return (gated_x + gated_averages).astype(matmul_dtype(self.dtype))
