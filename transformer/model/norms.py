"""Normalization of vectors (section 3.1), in float32 with gradients in float32."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from transformer.config.types import Config
from transformer.model.linear import as_row
from transformer.model.matmul import product_dtype


class LayerNorm(nnx.LayerNorm):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias in float32, like the gradients, which
    Flax would round.
    """

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        return normalize(
            x, self.scale[...], self.bias[...], self.epsilon, product_dtype(self.dtype)
        )


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def normalize(
    x: Float[Array, "*rows D"],
    scale: Float[Array, " D"],
    bias: Float[Array, " D"],
    epsilon: float,
    dtype: jnp.dtype,
) -> Float[Array, "*rows D"]:
    return _forward(x, scale, bias, epsilon, dtype)[0]


def _forward(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float, dtype: jnp.dtype):
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide, axis=-1, keepdims=True)
    centered = wide - mean
    # E[x^2] - E[x]^2 would lose digits where the mean is large.
    inverse = jax.lax.rsqrt(jnp.mean(jnp.square(centered), axis=-1, keepdims=True) + epsilon)
    y = centered * (inverse * as_row(scale, x)) + as_row(bias, x)
    return y.astype(dtype), (x, mean, inverse, scale)


def _backward(epsilon: float, dtype: jnp.dtype, saved: tuple[jax.Array, ...], d_y: jax.Array):
    x, mean, inverse, scale = saved
    wide, d_y = x.astype(jnp.float32), d_y.astype(jnp.float32)
    normalized = (wide - mean) * inverse
    d_normalized = d_y * as_row(scale, x)
    along_mean = jnp.mean(d_normalized, axis=-1, keepdims=True)
    along_x = jnp.mean(d_normalized * normalized, axis=-1, keepdims=True)
    d_x = inverse * (d_normalized - along_mean - normalized * along_x)
    # Sums of d_y * normalized and of d_y over all rows. From the product, XLA for GPUs would make
    # one kernel with the normalization, which stores a float32 array; multiplied out, both sums
    # take one pass over x and d_y.
    rows = tuple(range(x.ndim - 1))
    weighted = d_y * inverse
    return d_x.astype(x.dtype), jnp.sum(weighted * wide - weighted * mean, rows), jnp.sum(d_y, rows)


normalize.defvjp(_forward, _backward)


class RMSNorm(nnx.RMSNorm):
    """x / sqrt(mean of x^2 + epsilon) * scale in float32 (Zhang and Sennrich 2019)."""

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        wide = x.astype(jnp.float32)
        inverse = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.epsilon)
        return (wide * inverse * as_row(self.scale[...], x)).astype(product_dtype(self.dtype))


NORMS = {"layer_norm": LayerNorm, "rms_norm": RMSNorm}


def make_norm(config: Config, rngs: nnx.Rngs) -> nnx.Module:
    """Returns a normalization over D, computed in float32 for every dtype of the products."""
    return NORMS[config.norm](
        config.d_model, epsilon=config.layer_norm_epsilon, dtype=config.dtype, rngs=rngs
    )
