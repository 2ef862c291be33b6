"""Linear maps: Xavier initialization, products in the model's dtype, gradients of the parameters in float32."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from transformer.model import kernels
from transformer.model.kernels import TransposedMatrix, product_dtype


class Linear(nnx.Linear):
    """x W + b over the last dimension of x. Parameters are float32, the product is in `dtype`, the sum in float32.

    The result has `output_dtype`, which is `dtype` by default.
    """

    def __init__(
        self,
        fan_in: int,
        fan_out: int,
        *,
        use_bias: bool = True,
        dtype: str,
        output_dtype: jnp.dtype | None = None,
        rngs: nnx.Rngs,
    ):
        kernel_init = nnx.initializers.xavier_uniform()
        super().__init__(fan_in, fan_out, use_bias=use_bias, dtype=dtype, kernel_init=kernel_init, rngs=rngs)
        self.output_dtype = output_dtype

    def __call__(self, x: Float[Array, "*rows K"]) -> Float[Array, "*rows N"]:
        dtype = product_dtype(self.dtype)
        kernel, output_dtype = self.kernel.get_value(), self.output_dtype or dtype
        is_transposed = isinstance(kernel, TransposedMatrix)
        y = flat_product(x, kernel.transpose if is_transposed else kernel, dtype, output_dtype, is_transposed)
        if self.bias is None:
            return y
        # In float32: the gradient of the bias is a sum over all rows, which in bfloat16 would be a third too small.
        return (y + self.bias[...].reshape((1,) * (y.ndim - 1) + (-1,))).astype(output_dtype)

    @property
    def transposed_kernel(self) -> Float[Array, "N K"]:
        kernel = self.kernel.get_value()
        return kernel.transpose if isinstance(kernel, TransposedMatrix) else kernel.T


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def flat_product(
    x: Float[Array, "*rows K"],
    kernel: Float[Array, "K N"] | Float[Array, "N K"],
    dtype: jnp.dtype,
    output_dtype: jnp.dtype,
    is_transposed: bool = False,
) -> Float[Array, "*rows N"]:
    """Returns x @ kernel, or x @ kernel.T if `is_transposed`: a product of two matrices in `dtype`.

    It is accumulated and returned in `output_dtype`. The kernel's gradient is accumulated and returned in float32, so
    that it is not rounded before it is summed over batches and devices.

    Flattening the rows matters on CPUs: for the kernel's gradient XLA would transpose a (B, T, N) gradient and
    recompute everything fused into it element by element. A train step of 3,072 tokens takes 0.66 s instead of 1.06 s
    on two cores.
    """
    multiply = kernels.product_with_transpose if is_transposed else kernels.product
    y = multiply(_rows(x, dtype), kernel.astype(dtype), output_dtype)
    return y.reshape(*x.shape[:-1], y.shape[-1])


def _forward(x: jax.Array, kernel: jax.Array, dtype: jnp.dtype, output_dtype: jnp.dtype, is_transposed: bool):
    return flat_product(x, kernel, dtype, output_dtype, is_transposed), (x, kernel)


def _backward(dtype: jnp.dtype, output_dtype: jnp.dtype, is_transposed: bool, saved: tuple, d_y: jax.Array):
    x, kernel = saved
    rows, d_y = _rows(x, dtype), _rows(d_y, dtype)
    multiply = kernels.product if is_transposed else kernels.product_with_transpose
    d_x = multiply(d_y, kernel.astype(dtype), dtype)
    d_kernel = kernels.transposed_product(d_y, rows) if is_transposed else kernels.transposed_product(rows, d_y)
    return d_x.reshape(x.shape).astype(x.dtype), d_kernel


flat_product.defvjp(_forward, _backward)


def _rows(x: jax.Array, dtype: jnp.dtype) -> jax.Array:
    return x.reshape(-1, x.shape[-1]).astype(dtype)
