"""Normalization of vectors (section 3.1), in float32 with gradients in float32.

The methods of Flax's classes have more arguments.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from transformer.config.types import Config
from transformer.model.linear import expand_to_rank
from transformer.model.matmul import matmul_dtype

Rows = Float[Array, "*rows D"]


class LayerNorm(nnx.LayerNorm):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias (Ba et al. 2016).

    Parameters, computation and gradients are float32. Flax would round the gradients.
    """

    scale: nnx.Param
    bias: nnx.Param
    dtype: str

    def __call__(self, x: Rows) -> Rows:  # type: ignore[override]
        dtype = matmul_dtype(self.dtype)
        return normalize(x, self.scale[...], self.bias[...], self.epsilon, dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def normalize(
    x: Rows,
    scale: Float[Array, " D"],
    bias: Float[Array, " D"],
    epsilon: float,
    dtype: jnp.dtype,
) -> Rows:
    """Returns the layer normalization of x in `dtype`."""
    return _forward(x, scale, bias, epsilon, dtype)[0]


def _forward(x, scale, bias, epsilon, dtype):
    x32 = x.astype(jnp.float32)
    mean = jnp.mean(x32, axis=-1, keepdims=True)
    centered = x32 - mean
    # E[x^2] - E[x]^2 would lose digits where the mean is large.
    variance = jnp.mean(jnp.square(centered), axis=-1, keepdims=True)
    inverse = jax.lax.rsqrt(variance + epsilon)  # 1 / the standard deviation

    y = centered * (inverse * expand_to_rank(scale, x)) + expand_to_rank(bias, x)
    return y.astype(dtype), (x, mean, inverse, scale)


def _backward(epsilon, dtype, residuals, d_y):
    x, mean, inverse, scale = residuals
    x32 = x.astype(jnp.float32)
    d_y = d_y.astype(jnp.float32)

    # The gradient of x is d_normalized without its components along 1 and along `normalized`,
    # because the normalization removes the mean and the length of x.
    normalized = (x32 - mean) * inverse
    d_normalized = d_y * expand_to_rank(scale, x)
    along_mean = jnp.mean(d_normalized, axis=-1, keepdims=True)
    along_x = jnp.mean(d_normalized * normalized, axis=-1, keepdims=True)
    d_x = inverse * (d_normalized - along_mean - normalized * along_x)

    # The gradients of scale and bias are the sums of d_y * normalized and of d_y over all rows. XLA
    # for GPUs would fuse d_y * normalized with the normalization, into a kernel that stores a
    # float32 array. Multiplied out, both sums take one pass over x and d_y.
    rows = tuple(range(x.ndim - 1))
    weighted = d_y * inverse
    return (
        d_x.astype(x.dtype),
        jnp.sum(weighted * x32 - weighted * mean, rows),
        jnp.sum(d_y, rows),
    )


normalize.defvjp(_forward, _backward)


class RMSNorm(nnx.RMSNorm):
    """x / sqrt(mean of x^2 + epsilon) * scale in float32 (Zhang and Sennrich 2019)."""

    scale: nnx.Param
    dtype: str

    def __call__(self, x: Rows) -> Rows:  # type: ignore[override]
        x32 = x.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(x32), axis=-1, keepdims=True)
        inverse = jax.lax.rsqrt(mean_square + self.epsilon)
        y = x32 * inverse * expand_to_rank(self.scale[...], x)
        return y.astype(matmul_dtype(self.dtype))


NORMS = {"layer_norm": LayerNorm, "rms_norm": RMSNorm}


def make_norm(model_config: Config, rngs: nnx.Rngs) -> nnx.Module:
    """Returns a normalization over D, computed in float32 whatever the dtype of matmuls."""
    return NORMS[model_config.norm](
        model_config.d_model,
        epsilon=model_config.layer_norm_epsilon,
        dtype=model_config.dtype,
        rngs=rngs,
    )
