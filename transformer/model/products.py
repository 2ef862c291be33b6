"""Products of two matrices, in the form that runs fastest on the target platform."""

import functools
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float

from transformer.model.partitioning import is_for_one_cpu, target_platform

FLOAT32 = jnp.dtype(jnp.float32)
ROWS = Layout((0, 1))  # a row's elements are adjacent
FEW_ROWS = 64  # the most for which x^T is reordered instead of w (docs/performance.md has the times)
PROCESSOR = Path("/proc/cpuinfo")  # its features, on Linux


class TransposedMatrix(NamedTuple):
    """A weight (K, N) that is stored as its transpose, as decoding on CPUs keeps it."""

    transpose: Float[Array, "N K"] | Float[np.ndarray, "N K"]


def product_dtype(name: str) -> jnp.dtype:
    """Returns the dtype that `model.dtype` names; "auto" is bfloat16, but float32 on processors that lack it."""
    if name == "auto":
        name = "bfloat16" if target_platform() != "cpu" or computes_bfloat16() else "float32"
    return jnp.dtype(name)


def batched_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """Returns the dtype in which a search keeps operands of batched products in `dtype`: float32 on CPUs.

    XLA on CPUs computes batched products in float32, and would convert the operands at each step.
    """
    return FLOAT32 if target_platform() == "cpu" else dtype


def decoding_weight(
    w: Float[Array, "K N"] | Float[np.ndarray, "K N"], dtype: jnp.dtype
) -> Float[Array, "K N"] | Float[np.ndarray, "K N"] | TransposedMatrix:
    """Returns a weight as decoding keeps it: in `dtype`, and transposed on CPUs.

    XLA on CPUs reorders the right operand of a product at each call, which takes a third of the time of a product with
    64 rows in bfloat16. It reorders a transposed weight faster, and `product_with_transpose` need not reorder it.
    """
    converted = w.astype(dtype)
    return TransposedMatrix(converted.T) if target_platform() == "cpu" else converted


def product(x: Float[Array, "M K"], w: Float[Array, "K N"], dtype: jnp.dtype) -> Float[Array, "M N"]:
    """Returns x w, summed in float32, in `dtype`."""
    return _dot(x, w, (1, 0), dtype)


def product_with_transpose(x: Float[Array, "M K"], w: Float[Array, "N K"], dtype: jnp.dtype) -> Float[Array, "M N"]:
    """Returns x w^T, summed in float32, in `dtype`.

    With few rows in float32, CPUs compute (w x^T)^T, so that XLA reorders the small x^T instead of the weight.
    """
    if is_for_one_cpu() and len(x) <= FEW_ROWS and x.dtype == w.dtype == FLOAT32:
        return _row_major(_dot(w, _row_major(x.T), (1, 0), dtype)).T
    return _dot(x, w, (1, 1), dtype)


def transposed_product(x: Float[Array, "K M"], y: Float[Array, "K N"]) -> Float[Array, "M N"]:
    """Returns x^T y in float32, the form of the gradient of a weight matrix.

    XLA on CPUs would fold the transpose into the product, which then runs at half the speed in bfloat16. A constraint
    on the layout makes it transpose the narrower operand first. A second one, on the result, prevents XLA from folding
    a later transpose into the product: it fails to run that form in bfloat16. Over several devices the constraints
    would keep the partitioner from splitting the product.
    """
    if is_for_one_cpu():
        if x.shape[1] > y.shape[1]:
            return transposed_product(y, x).T
        return _row_major(_dot(_row_major(x.T), y, (1, 0), FLOAT32))
    return _dot(y, x, (0, 0), FLOAT32).T


def _row_major(x: jax.Array) -> jax.Array:
    """Makes XLA compute a matrix whose rows are contiguous, instead of folding a transpose into the products."""
    return with_layout_constraint(x, ROWS)


def _dot(a: jax.Array, b: jax.Array, contracted: tuple[int, int], dtype: jnp.dtype) -> jax.Array:
    # On CPUs only products with a float32 result use the instructions for bfloat16.
    result = FLOAT32 if target_platform() == "cpu" else dtype
    dimensions = ((contracted[:1], contracted[1:]), ((), ()))
    return jax.lax.dot_general(a, b, dimensions, preferred_element_type=result).astype(dtype)


@functools.cache
def computes_bfloat16() -> bool:
    """Tells whether this processor has dot products (AVX-512, Arm) or a matrix unit (AMX) for bfloat16."""
    try:
        words = PROCESSOR.read_text(encoding="utf-8", errors="replace").split()
    except OSError:  # not Linux
        return False
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(words)
