"""Layers of the encoder and the decoder (section 3.1): sub-layers with residuals and norms."""

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
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "gelu_exact": functools.partial(jax.nn.gelu, approximate=False),
    "swish": jax.nn.silu,
    "glu": jax.nn.sigmoid,
    "geglu": jax.nn.gelu,
    "swiglu": jax.nn.silu,
}
GATED = ("glu", "geglu", "swiglu")  # the result is multiplied with a second linear map of the input

Vectors = Float[Array, "B T D"]
Sublayer = Callable[[Vectors], Vectors]


class FeedForward(nnx.Module):
    """The position-wise feed-forward network (section 3.3).

    FFN(x) = max(0, x W1 + b1) W2 + b2 (equation 2), or with another activation f. Gated activations
    compute (f(x W1 + b1) * (x W3 + b3)) W2 + b2.
    """

    def __init__(self, model_config: Config, *, rngs: nnx.Rngs):
        d_model = model_config.d_model
        d_ff = model_config.d_ff
        is_gated = model_config.activation in GATED

        options = {
            "use_bias": model_config.feed_forward_bias,
            "dtype": model_config.dtype,
            "rngs": rngs,
        }
        self.inner = Linear(d_model, d_ff, **options)
        self.outer = Linear(d_ff, d_model, **options)
        self.gate = Linear(d_model, d_ff, **options) if is_gated else None
        self.activation = ACTIVATIONS[model_config.activation]
        self.activation_dropout_rate = model_config.activation_dropout

    def __call__(
        self,
        x: Vectors,
        rngs: nnx.Rngs | None = None,
    ) -> Vectors:
        hidden = self.activation(self.inner(x))  # (B, T, d_ff)
        if self.gate is not None:
            hidden = hidden * self.gate(x)
        return self.outer(dropout(hidden, self.activation_dropout_rate, rngs))


class SublayerConnection(nnx.Module):
    """The residual connection and the norm of a sub-layer, in one of `NORM_POSITIONS`.

    Dropout is applied to the output of the sub-layer (section 5.4).
    """

    def __init__(self, model_config: Config, *, rngs: nnx.Rngs):
        num_norms, self.connect = NORM_POSITIONS[model_config.norm_position]
        self.norm = make_norm(model_config, rngs)
        self.output_norm = make_norm(model_config, rngs) if num_norms == 2 else None
        self.dropout_rate = model_config.dropout

    def __call__(
        self,
        x: Vectors,
        sublayer: Sublayer,
        rngs: nnx.Rngs | None,
    ) -> Vectors:
        # Residual dropout (section 5.4).
        def sublayer_with_dropout(x):
            return dropout(sublayer(x), self.dropout_rate, rngs)

        norms = [self.norm] if self.output_norm is None else [self.norm, self.output_norm]
        return self.connect(x, sublayer_with_dropout, *norms)


def post_norm(x, sublayer, norm):
    """Returns LayerNorm(x + Sublayer(x)), as published (section 3.1)."""
    return norm(materialize(x + sublayer(x)))


def pre_norm(x, sublayer, norm):
    """Returns x + Sublayer(LayerNorm(x))."""
    return materialize(x + sublayer(norm(x)))


def sandwich_norm(x, sublayer, norm, output_norm):
    """Returns x + LayerNorm(Sublayer(LayerNorm(x)))."""
    return materialize(x + output_norm(sublayer(norm(x))))


# The number of norms of a sub-layer, and a function of (x, sublayer, *norms).
NORM_POSITIONS: dict[str, tuple[int, Callable[..., Array]]] = {
    "post": (1, post_norm),
    "pre": (1, pre_norm),
    "sandwich": (2, sandwich_norm),
}


class Layer(nnx.Module):
    """A layer of the encoder or the decoder (Figure 1).

    The sub-layers are self-attention, attention to an encoder's output if there is one, and a
    feed-forward network.
    """

    def __init__(
        self,
        model_config: Config,
        *,
        self_attention: Callable[..., nnx.Module] = MultiHeadAttention,
        cross_attention: bool,
        rngs: nnx.Rngs,
    ):
        # Each sub-layer has its own residual connection and norms.
        self.self_attention = self_attention(model_config, rngs=rngs)
        self.self_attention_connection = SublayerConnection(model_config, rngs=rngs)
        if cross_attention:
            self.cross_attention = MultiHeadAttention(model_config, rngs=rngs)
            self.cross_attention_connection = SublayerConnection(model_config, rngs=rngs)
        self.feed_forward = FeedForward(model_config, rngs=rngs)
        self.feed_forward_connection = SublayerConnection(model_config, rngs=rngs)

    def __call__(
        self,
        x: Vectors,
        attend_self: Sublayer,
        attend_memory: Sublayer | None,
        rngs: nnx.Rngs | None,
    ) -> Vectors:
        """Applies the sub-layers.

        `attend_self` and `attend_memory` apply the attentions of this layer. In training they
        attend to x and to the encoder's output, in decoding to keys and values in a cache.
        """
        # From bottom to top in Figure 1.
        x = self.self_attention_connection(x, attend_self, rngs)
        if attend_memory is not None:
            x = self.cross_attention_connection(x, attend_memory, rngs)
        return self.feed_forward_connection(x, lambda x: self.feed_forward(x, rngs), rngs)
