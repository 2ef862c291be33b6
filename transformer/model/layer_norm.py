"""Layer normalization (Ba et al. 2016) with a gradient that needs few passes over memory."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from transformer.model.kernels import product_dtype


class LayerNorm(nnx.LayerNorm):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the last dimension of x.

    It is computed in float32, and so are the gradients of scale and bias, which Flax's class rounds to `dtype`.
    """

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
