"""Computations whose fastest form depends on the platform: products, the residual stream,
reductions of the loss.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float, Int8

from transformer.model.partitioning import is_for_one_cpu, shard_rows, target_platform
from transformer.support.processor import auto_dtype

FLOAT32 = jnp.dtype(jnp.float32)
LOWEST = float(np.finfo(np.float32).min)
# the most for which x^T is reordered instead of w (docs/performance.md has the times)
FEW_ROWS = 64
# -128 is not used, so that a negated matrix has the negated integers
INT8, INT8_MAX = jnp.dtype(jnp.int8), 127
# Float32 logits of a chunk of the loss, on each device. TPUs keep small chunks in their vector
# memory. Each chunk adds to the whole gradient of the output table, which smaller ones would do
# more often.
CHUNK_BYTES = {"cpu": 2**26, "gpu": 2**29, "tpu": 2**26}
# The number of logits of a position is padded to a multiple of the tiles of matrix units.
COLUMN_MULTIPLE = {"cpu": 1, "gpu": 128, "tpu": 128}


class TransposedMatrix(NamedTuple):
    """A weight (K, N) that is stored as its transpose, as decoding on CPUs keeps it."""

    transpose: Float[Array | np.ndarray, "N K"]


class QuantizedRows(NamedTuple):
    """Rows of a matrix in 8 bits: integers times the scale of their row.

    Of a weight they are the columns.
    """

    integers: Int8[Array | np.ndarray, "*N K"]
    scales: Float[Array | np.ndarray, "*N"]


Weight = Float[Array | np.ndarray, "K N"] | TransposedMatrix | QuantizedRows


def product_dtype(name: str) -> jnp.dtype:
    """Returns the dtype that `model.dtype` names; "auto" is bfloat16, but float32 on processors
    that lack it.
    """
    return jnp.dtype(auto_dtype(target_platform()) if name == "auto" else name)


def batched_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """Returns the dtype of decoding's operands of batched products: float32 on CPUs, which would
    convert each time.
    """
    return FLOAT32 if target_platform() == "cpu" else dtype


def decoding_weight(w: Float[Array | np.ndarray, "K N"], dtype: jnp.dtype) -> Weight:
    """Returns a weight as decoding keeps it: in `dtype`, and transposed on CPUs, or quantized if
    `dtype` is int8.

    XLA on CPUs reorders the right operand at each product. It reorders a transposed weight faster,
    if it has to at all.
    """
    if dtype == INT8:
        return quantize(w.T)
    converted = w.astype(dtype)
    return TransposedMatrix(converted.T) if target_platform() == "cpu" else converted


def quantize(rows: Float[Array | np.ndarray, "N K"]) -> QuantizedRows:
    """Returns the rows in 8 bits.

    The largest number of a row becomes 127 or -127; a row of zeros has the scale 1.
    """
    rows = rows.astype(FLOAT32)
    scales = abs(rows).max(axis=1) / INT8_MAX
    scales = scales + (scales == 0.0)
    return QuantizedRows((rows / scales[:, None]).round().astype(INT8), scales)


def dequantize(rows: Float[Array, "*N K"] | QuantizedRows) -> Float[Array, "*N K"]:
    """Returns rows as they are, or in float32 if they are quantized."""
    return rows.integers * rows.scales[..., None] if isinstance(rows, QuantizedRows) else rows


def linear_map(
    x: Float[Array, "*rows K"], weight: Weight, dtype: jnp.dtype, output_dtype: jnp.dtype
) -> Float[Array, "*rows N"]:
    """Returns x times a weight: a product in `dtype`, or for a quantized weight in int8."""
    if isinstance(weight, QuantizedRows):
        return quantized_product(x, weight).astype(output_dtype)
    if isinstance(weight, TransposedMatrix):
        return flat_product(x, weight.transpose, dtype, output_dtype, is_transposed=True)
    return flat_product(x, weight, dtype, output_dtype)


def quantized_product(x: Float[Array, "*rows K"], weight: QuantizedRows) -> Float[Array, "*rows N"]:
    """Returns x times a weight in float32, with int32 sums.

    A row of x has its own scale, whatever the other rows.
    """
    rows = quantize(_rows(x, FLOAT32))
    sums = jnp.einsum("mk,nk->mn", rows.integers, weight.integers, preferred_element_type=jnp.int32)
    y = sums * rows.scales[:, None] * weight.scales[None]
    return y.reshape(*x.shape[:-1], y.shape[-1])


def product(
    x: Float[Array, "M K"], w: Float[Array, "K N"], dtype: jnp.dtype
) -> Float[Array, "M N"]:
    """Returns x w, summed in float32, in `dtype`."""
    return _dot(x, w, (1, 0), dtype)


def product_with_transpose(
    x: Float[Array, "M K"], w: Float[Array, "N K"], dtype: jnp.dtype
) -> Float[Array, "M N"]:
    """Returns x w^T, summed in float32, in `dtype`.

    With few rows in float32, CPUs compute (w x^T)^T, so that XLA reorders the small x^T instead of
    the weight.
    """
    if is_for_one_cpu() and len(x) <= FEW_ROWS and x.dtype == w.dtype == FLOAT32:
        return _row_major(_dot(w, _row_major(x.T), (1, 0), dtype)).T
    return _dot(x, w, (1, 1), dtype)


def transposed_product(x: Float[Array, "K M"], y: Float[Array, "K N"]) -> Float[Array, "M N"]:
    """Returns x^T y in float32, the form of the gradient of a weight matrix.

    XLA on CPUs would fold the transpose into the product, which then runs at half the speed in
    bfloat16. A constraint on the layout makes it transpose the narrower operand first; another
    keeps a later transpose out of the product, which would fail in bfloat16. Over several devices
    both would keep the partitioner from splitting the product.
    """
    if is_for_one_cpu():
        if x.shape[1] > y.shape[1]:
            return transposed_product(y, x).T
        return _row_major(_dot(_row_major(x.T), y, (1, 0), FLOAT32))
    return _dot(y, x, (0, 0), FLOAT32).T


def _row_major(x: jax.Array) -> jax.Array:
    """Makes XLA compute a matrix whose rows are contiguous, instead of folding a transpose into the
    products.
    """
    return with_layout_constraint(x, Layout((0, 1)))


def _dot(a: jax.Array, b: jax.Array, contracted: tuple[int, int], dtype: jnp.dtype) -> jax.Array:
    # On CPUs only products with a float32 result use the instructions for bfloat16.
    result = FLOAT32 if target_platform() == "cpu" else dtype
    dimensions = ((contracted[:1], contracted[1:]), ((), ()))
    return jax.lax.dot_general(a, b, dimensions, preferred_element_type=result).astype(dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def flat_product(
    x: Float[Array, "*rows K"],
    kernel: Float[Array, "K N"] | Float[Array, "N K"],
    dtype: jnp.dtype,
    output_dtype: jnp.dtype,
    is_transposed: bool = False,
) -> Float[Array, "*rows N"]:
    """Returns x @ kernel, or x @ kernel.T if `is_transposed`, in `output_dtype`. Operands are in
    `dtype`.

    The kernel's gradient is float32, so that it is not rounded before it is summed over batches and
    devices. Without flattened rows, XLA on CPUs would recompute everything fused into the gradient
    of y for each element.
    """
    multiply = product_with_transpose if is_transposed else product
    y = multiply(_rows(x, dtype), kernel.astype(dtype), output_dtype)
    return y.reshape(*x.shape[:-1], y.shape[-1])


def _forward(
    x: jax.Array, kernel: jax.Array, dtype: jnp.dtype, output_dtype: jnp.dtype, is_transposed: bool
):
    return flat_product(x, kernel, dtype, output_dtype, is_transposed), (x, kernel)


def _backward(
    dtype: jnp.dtype, output_dtype: jnp.dtype, is_transposed: bool, saved: tuple, d_y: jax.Array
):
    x, kernel = saved
    rows, d_y = _rows(x, dtype), _rows(d_y, dtype)
    multiply = product if is_transposed else product_with_transpose
    d_x = multiply(d_y, kernel.astype(dtype), dtype)
    d_kernel = transposed_product(d_y, rows) if is_transposed else transposed_product(rows, d_y)
    return d_x.reshape(x.shape).astype(x.dtype), d_kernel


flat_product.defvjp(_forward, _backward)


def _rows(x: jax.Array, dtype: jnp.dtype) -> jax.Array:
    return x.reshape(-1, x.shape[-1]).astype(dtype)


def materialize(x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """Constrains x and its gradient to the devices' rows, and on CPUs makes the compiler compute
    both once.

    XLA on CPUs fuses elementwise results into their uses: every product would recompute the
    residual stream of all layers before it, dropout included. On accelerators a barrier would only
    add memory traffic.
    """
    return (
        jax.lax.optimization_barrier(shard_rows(x)) if target_platform() == "cpu" else shard_rows(x)
    )


def rows_per_chunk(bytes_per_row: int) -> int:
    """Returns how many rows a chunk of the loss has on each device, given the bytes of a row's
    logits.
    """
    return max(CHUNK_BYTES[target_platform()] // bytes_per_row, 1)


def max_and_exponentials(
    x: Float[Array, "*rows C"],
) -> tuple[Float[Array, "*rows"], Float[Array, "*rows"]]:
    """Returns the maximum of each row and the sum of exp(x - maximum).

    CPUs read x twice (docs/performance.md).
    """
    if target_platform() == "cpu":
        maximum = jnp.max(x, axis=-1)
        return maximum, jnp.sum(jnp.exp(x - maximum[..., None]), axis=-1)

    def combine(left: tuple, right: tuple) -> tuple:
        maximum = jnp.maximum(left[0], right[0])
        return maximum, left[1] * jnp.exp(left[0] - maximum) + right[1] * jnp.exp(
            right[0] - maximum
        )

    start = jnp.float32(LOWEST), jnp.float32(0.0)
    return tuple(jax.lax.reduce((x, jnp.ones_like(x)), start, combine, (x.ndim - 1,)))
