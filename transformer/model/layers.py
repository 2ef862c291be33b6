"""Layers of the encoder and the decoder (section 3.1): sub-layers, each with a residual connection and a norm."""

from collections.abc import Callable
from typing import NamedTuple

import jax
from flax import nnx
from jaxtyping import Array, Float

from transformer.config_types import Config
from transformer.model.attention import MultiHeadAttention
from transformer.model.dropout import dropout
from transformer.model.kernels import materialize
from transformer.model.layer_norm import LayerNorm
from transformer.model.linear import Linear


class Gated(NamedTuple):
    """An activation whose result is multiplied with a second linear map of the input."""

    function: Callable[[jax.Array], jax.Array]


# jax.nn.gelu is the tanh approximation by default, unlike PyTorch's, which is exact.
ACTIVATIONS = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "glu": Gated(jax.nn.sigmoid),
    "geglu": Gated(jax.nn.gelu),
    "swiglu": Gated(jax.nn.silu),
}


class FeedForward(nnx.Module):
    """FFN(x) = max(0, x W1 + b1) W2 + b2 (equation 2); gated: (f(x W1 + b1) * (x W3 + b3)) W2 + b2."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        options = {"dtype": config.dtype, "rngs": rngs}
        self.inner = Linear(config.d_model, config.d_ff, **options)
        self.outer = Linear(config.d_ff, config.d_model, **options)
        function = ACTIVATIONS[config.activation]
        is_gated = isinstance(function, Gated)
        self.gate = Linear(config.d_model, config.d_ff, **options) if is_gated else None
        self.activation = function.function if is_gated else function
        self.dropout_rate = config.activation_dropout

    def __call__(self, x: Float[Array, "B T D"], rngs: nnx.Rngs | None = None) -> Float[Array, "B T D"]:
        hidden = self.activation(self.inner(x))
        if self.gate is not None:
            hidden = hidden * self.gate(x)
        return self.outer(dropout(hidden, self.dropout_rate, rngs))


class SublayerConnection(nnx.Module):
    """LayerNorm(x + Dropout(Sublayer(x))), as published, or with pre-norm x + Dropout(Sublayer(LayerNorm(x)))."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.norm = layer_norm(config, rngs)
        self.connect = NORM_POSITIONS[config.norm_position]
        self.dropout_rate = config.dropout

    def __call__(
        self,
        x: Float[Array, "B T D"],
        sublayer: Callable[[Float[Array, "B T D"]], Float[Array, "B T D"]],
        rngs: nnx.Rngs | None,
    ) -> Float[Array, "B T D"]:
        return self.connect(x, lambda x: dropout(sublayer(x), self.dropout_rate, rngs), self.norm)


NORM_POSITIONS = {
    "post": lambda x, sublayer, norm: norm(materialize(x + sublayer(x))),
    "pre": lambda x, sublayer, norm: materialize(x + sublayer(norm(x))),
}


class Layer(nnx.Module):
    """Self-attention, attention to the encoder's output, and a feed-forward network (Figure 1).

    The encoder's layers, and those of a language model, have no `cross_attention`.
    """

    def __init__(self, config: Config, *, cross_attention: bool, rngs: nnx.Rngs):
        self.self_attention = MultiHeadAttention(config, rngs=rngs)
        self.self_attention_connection = SublayerConnection(config, rngs=rngs)
        self.cross_attention = MultiHeadAttention(config, rngs=rngs) if cross_attention else None
        self.cross_attention_connection = SublayerConnection(config, rngs=rngs) if cross_attention else None
        self.feed_forward = FeedForward(config, rngs=rngs)
        self.feed_forward_connection = SublayerConnection(config, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        attend_self: Callable[[Float[Array, "B T D"]], Float[Array, "B T D"]],
        attend_memory: Callable[[Float[Array, "B T D"]], Float[Array, "B T D"]] | None,
        rngs: nnx.Rngs | None,
    ) -> Float[Array, "B T D"]:
        """Applies the sub-layers. The two functions attend with keys and values of x and the memory, or of a cache."""
        x = self.self_attention_connection(x, attend_self, rngs)
        if attend_memory is not None:
            x = self.cross_attention_connection(x, attend_memory, rngs)
        return self.feed_forward_connection(x, lambda x: self.feed_forward(x, rngs), rngs)


def layer_norm(config: Config, rngs: nnx.Rngs) -> LayerNorm:
    """Returns layer normalization over D, computed in float32 for every dtype of the products."""
    return LayerNorm(config.d_model, epsilon=config.layer_norm_epsilon, dtype=config.dtype, rngs=rngs)
