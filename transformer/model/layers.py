"""Layers of the encoder and the decoder (section 3.1): sub-layers, each with a residual connection and a norm."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from transformer.config_types import Config
from transformer.model.attention import MultiHeadAttention
from transformer.model.dropout import dropout
from transformer.model.kernels import materialize, product_dtype
from transformer.model.linear import Linear

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


class FeedForward(nnx.Module):
    """FFN(x) = max(0, x W1 + b1) W2 + b2 (equation 2); gated: (f(x W1 + b1) * (x W3 + b3)) W2 + b2."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        options = {"dtype": config.dtype, "rngs": rngs}
        self.inner = Linear(config.d_model, config.d_ff, **options)
        self.outer = Linear(config.d_ff, config.d_model, **options)
        self.gate = Linear(config.d_model, config.d_ff, **options) if config.activation in GATED else None
        self.activation = ACTIVATIONS[config.activation]
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
    """Self-attention, attention to an encoder's output if there is one, and a feed-forward network (Figure 1)."""

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


class LayerNorm(nnx.LayerNorm):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias in float32, like the gradients, which Flax would round."""

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        return normalize(x, self.scale[...], self.bias[...], self.epsilon, product_dtype(self.dtype))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def normalize(
    x: Float[Array, "*rows D"], scale: Float[Array, " D"], bias: Float[Array, " D"], epsilon: float, dtype: jnp.dtype
) -> Float[Array, "*rows D"]:
    return _forward(x, scale, bias, epsilon, dtype)[0]


def _forward(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float, dtype: jnp.dtype):
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide, axis=-1, keepdims=True)
    centered = wide - mean
    # E[x^2] - E[x]^2 would lose digits where the mean is large.
    inverse = jax.lax.rsqrt(jnp.mean(jnp.square(centered), axis=-1, keepdims=True) + epsilon)
    y = centered * (inverse * _as_row(scale, x)) + _as_row(bias, x)
    return y.astype(dtype), (x, mean, inverse, scale)


def _backward(epsilon: float, dtype: jnp.dtype, saved: tuple[jax.Array, ...], d_y: jax.Array):
    x, mean, inverse, scale = saved
    wide, d_y = x.astype(jnp.float32), d_y.astype(jnp.float32)
    normalized = (wide - mean) * inverse
    d_normalized = d_y * _as_row(scale, x)
    along_mean = jnp.mean(d_normalized, axis=-1, keepdims=True)
    along_x = jnp.mean(d_normalized * normalized, axis=-1, keepdims=True)
    d_x = inverse * (d_normalized - along_mean - normalized * along_x)
    # Sums of d_y * normalized and of d_y over all rows. From the product, XLA for GPUs would make one kernel with the
    # normalization, which stores a float32 array; multiplied out, both sums take one pass over x and d_y.
    rows = tuple(range(x.ndim - 1))
    weighted = d_y * inverse
    return d_x.astype(x.dtype), jnp.sum(weighted * wide - weighted * mean, rows), jnp.sum(d_y, rows)


normalize.defvjp(_forward, _backward)


def _as_row(vector: jax.Array, x: jax.Array) -> jax.Array:
    return vector.reshape((1,) * (x.ndim - 1) + (-1,))


def layer_norm(config: Config, rngs: nnx.Rngs) -> LayerNorm:
    """Returns layer normalization over D, computed in float32 for every dtype of the products."""
    return LayerNorm(config.d_model, epsilon=config.layer_norm_epsilon, dtype=config.dtype, rngs=rngs)
