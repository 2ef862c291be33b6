"""Layers of the encoder and the decoder (section 3.1): sub-layers, each with a residual connection
and a norm.
"""

import functools
from collections.abc import Callable

import jax
from flax import nnx
from jaxtyping import Array, Float

from transformer.config.types import Config
from transformer.model.attention import MultiHeadAttention
from transformer.model.dropout import dropout
from transformer.model.linear import Linear
from transformer.model.norms import make_norm
from transformer.model.partitioning import materialize

# jax.nn.gelu is the tanh approximation by default, unlike PyTorch's, which is exact.
ACTIVATIONS = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "gelu_exact": functools.partial(jax.nn.gelu, approximate=False),
    "swish": jax.nn.silu,
    "glu": jax.nn.sigmoid,
    "geglu": jax.nn.gelu,
    "swiglu": jax.nn.silu,
}
GATED = ("glu", "geglu", "swiglu")  # the result is multiplied with a second linear map of the input

Sublayer = Callable[[Float[Array, "B T D"]], Float[Array, "B T D"]]


class FeedForward(nnx.Module):
    """FFN(x) = max(0, x W1 + b1) W2 + b2 (equation 2); gated: (f(x W1 + b1) * (x W3 + b3)) W2 + b2."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        options = {"dtype": config.dtype, "rngs": rngs}
        self.inner = Linear(config.d_model, config.d_ff, **options)
        self.outer = Linear(config.d_ff, config.d_model, **options)
        self.gate = (
            Linear(config.d_model, config.d_ff, **options) if config.activation in GATED else None
        )
        self.activation = ACTIVATIONS[config.activation]
        self.activation_dropout = config.activation_dropout

    def __call__(
        self, x: Float[Array, "B T D"], rngs: nnx.Rngs | None = None
    ) -> Float[Array, "B T D"]:
        hidden = self.activation(self.inner(x))
        if self.gate is not None:
            hidden = hidden * self.gate(x)
        return self.outer(dropout(hidden, self.activation_dropout, rngs))


class SublayerConnection(nnx.Module):
    """LayerNorm(x + Dropout(Sublayer(x))), as published, or another of `NORM_POSITIONS`."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        num_norms, self.connect = NORM_POSITIONS[config.norm_position]
        self.norm = make_norm(config, rngs)
        self.output_norm = make_norm(config, rngs) if num_norms == 2 else None
        self.dropout = config.dropout

    def __call__(
        self, x: Float[Array, "B T D"], sublayer: Sublayer, rngs: nnx.Rngs | None
    ) -> Float[Array, "B T D"]:
        norms = [norm for norm in (self.norm, self.output_norm) if norm is not None]
        return self.connect(x, lambda x: dropout(sublayer(x), self.dropout, rngs), *norms)


# The number of norms of a sub-layer, and a function of (x, sublayer, *norms).
NORM_POSITIONS = {
    "post": (1, lambda x, sublayer, norm: norm(materialize(x + sublayer(x)))),
    "pre": (1, lambda x, sublayer, norm: materialize(x + sublayer(norm(x)))),
    "sandwich": (
        2,
        lambda x, sublayer, norm, output_norm: materialize(x + output_norm(sublayer(norm(x)))),
    ),
}


class Layer(nnx.Module):
    """Self-attention, attention to an encoder's output if there is one, and a feed-forward network
    (Figure 1).
    """

    def __init__(
        self,
        config: Config,
        *,
        self_attention: type[nnx.Module] = MultiHeadAttention,
        cross_attention: bool,
        rngs: nnx.Rngs,
    ):
        self.self_attention = self_attention(config, rngs=rngs)
        self.self_attention_connection = SublayerConnection(config, rngs=rngs)
        self.cross_attention = MultiHeadAttention(config, rngs=rngs) if cross_attention else None
        self.cross_attention_connection = (
            SublayerConnection(config, rngs=rngs) if cross_attention else None
        )
        self.feed_forward = FeedForward(config, rngs=rngs)
        self.feed_forward_connection = SublayerConnection(config, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        attend_self: Sublayer,
        attend_memory: Sublayer | None,
        rngs: nnx.Rngs | None,
    ) -> Float[Array, "B T D"]:
        """Applies the sub-layers.

        The two functions attend with keys and values of x and the memory, or of a cache.
        """
        x = self.self_attention_connection(x, attend_self, rngs)
        if attend_memory is not None:
            x = self.cross_attention_connection(x, attend_memory, rngs)
        return self.feed_forward_connection(x, lambda x: self.feed_forward(x, rngs), rngs)
