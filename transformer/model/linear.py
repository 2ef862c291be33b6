"""Linear maps: parameters and their gradients in float32, matmuls in the model's dtype."""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from transformer.model.matmul import matmul_dtype
from transformer.model.stored_weights import AnyArray, linear_map

Rows = Float[Array, "*rows K"]


class Linear(nnx.Linear):
    """x W + b over the last dimension of x, with Xavier initialization of W.

    The matmul is in `dtype`, the sum in float32, and the result in `output_dtype` or `dtype`. The
    methods of Flax's class have more arguments.
    """

    dtype: str

    def __init__(
        self,
        fan_in: int,
        fan_out: int,
        *,
        dtype: str,
        output_dtype: jnp.dtype | None = None,
        **options: Any,
    ):
        """`options` are those of `nnx.Linear`: `rngs` and perhaps `use_bias`."""
        super().__init__(
            fan_in, fan_out, dtype=dtype, kernel_init=nnx.initializers.xavier_uniform(), **options
        )
        self.output_dtype = output_dtype

    def __call__(self, x: Rows) -> Float[Array, "*rows N"]:  # type: ignore[override]
        dtype = matmul_dtype(self.dtype)
        output_dtype = self.output_dtype or dtype
        y = linear_map(x, self.kernel.get_value(), dtype, output_dtype)
        if self.bias is None:
            return y
        # In float32: the gradient of the bias is a sum over all rows, which in bfloat16 would be a
        # third too small.
        return (y + expand_to_rank(self.bias[...], y)).astype(output_dtype)


def expand_to_rank(
    vector: Float[AnyArray, " D"],
    x: Float[Array, "*rows D"],
) -> Float[AnyArray, "*ones D"]:
    """Returns the vector with the rank of x: (1, ..., 1, D)."""
    return vector.reshape((1,) * (x.ndim - 1) + (-1,))
