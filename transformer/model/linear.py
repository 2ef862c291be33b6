"""The linear maps of all sub-layers: drawn within Xavier's bound, and multiplied with all rows laid flat."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float


def linear(
    fan_in: int,
    fan_out: int,
    *,
    use_bias: bool = True,
    dtype: jnp.dtype,
    preferred_element_type: jnp.dtype | None = None,
    rngs: nnx.Rngs,
) -> nnx.Linear:
    """x W + b over the last dimension of x, of whatever shape; products are `dtype`, parameters float32."""
    return nnx.Linear(
        fan_in,
        fan_out,
        use_bias=use_bias,
        dtype=dtype,
        preferred_element_type=preferred_element_type,
        kernel_init=nnx.initializers.xavier_uniform(),
        dot_general=flat_dot_general,
        rngs=rngs,
    )


def flat_dot_general(
    x: Float[Array, "*rows K"], kernel: Float[Array, "K N"], dimension_numbers: Any = None, **options: Any
) -> Float[Array, "*rows N"]:
    """x @ kernel as one product of two matrices, with the options of `jax.lax.dot_general`, in whose place it stands.

    For the gradient of `kernel`, XLA on CPUs copies a (B, T, N) gradient transposed, and computes all that led to it,
    dropout included, element by element on the way. A flat one is multiplied as it lies: a train step of 3,072 tokens
    takes 0.66 s instead of 1.06 on two cores. `dimension_numbers` is what the rank of x already says.
    """
    y = jax.lax.dot_general(x.reshape(-1, x.shape[-1]), kernel, (((1,), (0,)), ((), ())), **options)
    return y.reshape(*x.shape[:-1], kernel.shape[-1])
