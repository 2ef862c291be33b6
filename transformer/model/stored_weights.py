"""The forms in which decoding stores weights, and linear maps by weights in any form."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int8

from transformer.model.matmul import FLOAT32, flat_matmul
from transformer.model.partitioning import target_platform

AnyArray = Any  # of JAX, or of NumPy on the host
INT8 = jnp.dtype(jnp.int8)
INT8_MAX = 127  # -128 is not used, so that a negated matrix has the negated integers


class TransposedMatrix(NamedTuple):
    """A weight (K, N) that is stored as its transpose. Decoding on CPUs stores weights so."""

    transpose: Float[AnyArray, "N K"]


class QuantizedRows(NamedTuple):
    """Rows of a matrix in 8 bits: integers times the scale of their row.

    For a weight (K, N), the rows are the N columns of the weight.
    """

    integers: Int8[AnyArray, "*N K"]
    scales: Float[AnyArray, "*N"]


Weight = Float[AnyArray, "K N"] | TransposedMatrix | QuantizedRows


def decoding_weight(w: Float[AnyArray, "K N"], dtype: jnp.dtype) -> Weight:
    """Returns a weight as decoding stores it: in `dtype`, and quantized if `dtype` is int8.

    On CPUs the weight is also transposed. XLA reorders the right operand of each matmul there, and
    it reorders a transposed weight faster, if it has to at all.
    """
    if dtype == INT8:
        return quantize(w.T)
    converted = w.astype(dtype)
    return TransposedMatrix(converted.T) if target_platform() == "cpu" else converted


def decoding_table(
    rows: Float[AnyArray, "V D"], dtype: jnp.dtype
) -> Float[AnyArray, "V D"] | QuantizedRows:
    """Returns the table of tied embeddings as decoding stores it.

    On accelerators it has `dtype`, because XLA would convert it at each step of a search. On CPUs,
    XLA converts it once, before the first step.
    """
    if dtype == INT8:
        return quantize(rows)
    return rows if target_platform() == "cpu" else rows.astype(dtype)


def quantize(rows: Float[AnyArray, "N K"]) -> QuantizedRows:
    """Returns the rows in 8 bits.

    The largest number of a row becomes 127 or -127; a row of zeros has the scale 1.
    """
    rows = rows.astype(FLOAT32)
    scales = abs(rows).max(axis=1) / INT8_MAX
    scales = scales + (scales == 0.0)
    return QuantizedRows((rows / scales[:, None]).round().astype(INT8), scales)


def dequantize(rows: Float[Array, "*N K"] | QuantizedRows) -> Float[Array, "*N K"]:
    """Returns quantized rows in float32, and other rows unchanged."""
    return rows.integers * rows.scales[..., None] if isinstance(rows, QuantizedRows) else rows


def transposed(weight: Weight) -> Float[Array, "N K"]:
    """Returns the transpose of a weight, in float32 if the weight is quantized."""
    if isinstance(weight, TransposedMatrix):
        return weight.transpose
    if isinstance(weight, QuantizedRows):
        return dequantize(weight)
    return weight.T


def linear_map(
    x: Float[Array, "*rows K"],
    weight: Weight,
    dtype: jnp.dtype,
    output_dtype: jnp.dtype,
) -> Float[Array, "*rows N"]:
    """Returns x times a weight: a matmul in `dtype`, or in int8 if the weight is quantized."""
    if isinstance(weight, QuantizedRows):
        return quantized_matmul(x, weight).astype(output_dtype)
    if isinstance(weight, TransposedMatrix):
        return flat_matmul(x, weight.transpose, dtype, output_dtype, is_transposed=True)
    return flat_matmul(x, weight, dtype, output_dtype)


def quantized_matmul(x: Float[Array, "*rows K"], weight: QuantizedRows) -> Float[Array, "*rows N"]:
    """Returns x times a weight in float32, with sums in int32.

    Each row of x has its own scale, so that a row's result does not depend on the other rows.
    """
    # (s_m q_m) . (s_n q_n) = s_m s_n (q_m . q_n), with integers q and scales s.
    rows = quantize(x.reshape(-1, x.shape[-1]))  # (M, K)
    sums = jnp.einsum("mk,nk->mn", rows.integers, weight.integers, preferred_element_type=jnp.int32)
    y = sums * rows.scales[:, None] * weight.scales[None]
    return y.reshape(*x.shape[:-1], y.shape[-1])  # (*rows, N)
