"""Matrix multiplications in the form that each platform computes fastest."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float

from transformer.model.partitioning import is_for_one_cpu, target_platform
from transformer.support.processor import auto_dtype

FLOAT32 = jnp.dtype(jnp.float32)
# On CPUs, `matmul_nt` reorders x^T instead of w for at most this many rows of x
# (docs/performance.md has the times).
FEW_ROWS = 64


def matmul_dtype(name: str) -> jnp.dtype:
    """Returns the dtype of matmuls for a value of `model.dtype`.

    "auto" is bfloat16, but float32 on processors without bfloat16 instructions.
    """
    return jnp.dtype(auto_dtype(target_platform()) if name == "auto" else name)


def batched_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """Returns the dtype of the operands of batched matmuls in decoding.

    It is float32 on CPUs, which would otherwise convert the operands at each step.
    """
    return FLOAT32 if target_platform() == "cpu" else dtype


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def flat_matmul(
    x: Float[Array, "*rows K"],
    weight: Float[Array, "K N"] | Float[Array, "N K"],
    dtype: jnp.dtype,
    output_dtype: jnp.dtype,
    is_transposed: bool = False,
) -> Float[Array, "*rows N"]:
    """Returns x @ weight, or x @ weight.T if `is_transposed`, in `output_dtype`.

    The operands of the matmul are in `dtype`. The gradient of the weight is float32, so that it is
    not rounded before it is summed over batches and devices. The rows of x are flattened, because
    XLA on CPUs would otherwise recompute everything that it fuses into the gradient of y for each
    element of the result.
    """
    multiply = matmul_nt if is_transposed else matmul
    y = multiply(_flatten(x, dtype), weight.astype(dtype), output_dtype)
    return y.reshape(*x.shape[:-1], y.shape[-1])  # (*rows, N)


def _forward(x, weight, dtype, output_dtype, is_transposed):
    return flat_matmul(x, weight, dtype, output_dtype, is_transposed), (x, weight)


def _backward(dtype, output_dtype, is_transposed, residuals, d_y):
    # y = x w: d_x = d_y w^T and d_w = x^T d_y.
    x, weight = residuals
    rows = _flatten(x, dtype)
    d_y = _flatten(d_y, dtype)
    multiply = matmul if is_transposed else matmul_nt
    d_x = multiply(d_y, weight.astype(dtype), dtype)
    d_weight = matmul_tn(d_y, rows) if is_transposed else matmul_tn(rows, d_y)
    return d_x.reshape(x.shape).astype(x.dtype), d_weight


flat_matmul.defvjp(_forward, _backward)


def _flatten(x: Float[Array, "*rows K"], dtype: jnp.dtype) -> Float[Array, "M K"]:
    return x.reshape(-1, x.shape[-1]).astype(dtype)


def query_key_matmul(
    queries: Float[Array, "B T H d"],
    keys: Float[Array, "B S H d"],
) -> Float[Array, "B H T S"]:
    """Returns Q K^T of each head, in float32."""
    if _has_fast_batches(keys):
        return _batched_matmul(_heads_first(queries), _heads_first(keys), True)
    return jnp.einsum("bthd,bshd->bhts", queries, keys, preferred_element_type=FLOAT32)


def weight_value_matmul(
    weights: Float[Array, "B H T S"],
    values: Float[Array, "B S H d"],
) -> Float[Array, "B T H d"]:
    """Returns the weighted sums of the values of each head, in the dtype of the values."""
    if _has_fast_batches(values):
        heads = _batched_matmul(weights, _heads_first(values), False).astype(values.dtype)
    else:
        heads = jnp.einsum("bhts,bshd->bhtd", weights.astype(values.dtype), values)
    return jnp.swapaxes(heads, 1, 2)


def _has_fast_batches(operand: jax.Array) -> bool:
    # JAX's gradients of batched matmuls contract axes for which XLA on CPUs does not use the
    # instructions for bfloat16.
    return is_for_one_cpu() and operand.dtype == jnp.bfloat16


def _heads_first(x: Float[Array, "B L H d"]) -> Float[Array, "B H L d"]:
    return jnp.swapaxes(x, 1, 2)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _batched_matmul(
    a: Float[Array, "B H M K"],
    b: Float[Array, "B H K N"] | Float[Array, "B H N K"],
    is_transposed: bool,
) -> Float[Array, "B H M N"]:
    """Returns a b, or a b^T if `is_transposed`, in float32. The operands have the dtype of b."""
    y, _ = _batched_forward(a, b, is_transposed)
    return y


def _batched_forward(a, b, is_transposed):
    # The residual is the rounded a, which takes less memory, and an empty array of its dtype.
    rounded = a.astype(b.dtype)
    return _batched_dot(rounded, b, is_transposed), (rounded, b, jnp.zeros(0, a.dtype))


def _batched_backward(is_transposed, residuals, d_y):
    a, b, empty = residuals
    d_y = d_y.astype(b.dtype)
    # y = a b: d_a = d_y b^T and d_b = a^T d_y. y = a b^T: d_a = d_y b and d_b = d_y^T a.
    d_a = _batched_dot(d_y, b, not is_transposed)
    left, right = (d_y, a) if is_transposed else (a, d_y)
    d_b = _batched_dot(jnp.matrix_transpose(left), right, False)
    return d_a.astype(empty.dtype), d_b.astype(b.dtype)


_batched_matmul.defvjp(_batched_forward, _batched_backward)


def _batched_dot(a: jax.Array, b: jax.Array, is_transposed: bool) -> jax.Array:
    # The layouts keep transposes out of the matmul.
    axis = 3 if is_transposed else 2
    dimensions = (((3,), (axis,)), ((0, 1), (0, 1)))
    y = jax.lax.dot_general(
        _row_major(a), _row_major(b), dimensions, preferred_element_type=FLOAT32
    )
    return _row_major(y)


# The letters n and t are those of BLAS: t is a transposed operand, n one that is not.


def matmul(x: Float[Array, "M K"], w: Float[Array, "K N"], dtype: jnp.dtype) -> Float[Array, "M N"]:
    """Returns x w, summed in float32, in `dtype`."""
    return _dot(x, w, (1, 0), dtype)


def matmul_nt(
    x: Float[Array, "M K"],
    w: Float[Array, "N K"],
    dtype: jnp.dtype,
) -> Float[Array, "M N"]:
    """Returns x w^T, summed in float32, in `dtype`.

    For few rows in float32, CPUs compute (w x^T)^T, so that XLA reorders the small x^T instead of
    the weight.
    """
    if is_for_one_cpu() and len(x) <= FEW_ROWS and x.dtype == w.dtype == FLOAT32:
        return _row_major(_dot(w, _row_major(x.T), (1, 0), dtype)).T
    return _dot(x, w, (1, 1), dtype)


def matmul_tn(x: Float[Array, "K M"], y: Float[Array, "K N"]) -> Float[Array, "M N"]:
    """Returns x^T y in float32, the form of the gradient of a weight.

    XLA on CPUs would fold the transpose into the matmul, which then runs at half the speed in
    bfloat16. A constraint on the layout makes XLA transpose the narrower operand first. A second
    constraint keeps a later transpose out of the matmul, which would fail in bfloat16. Over several
    devices, the constraints would keep the partitioner from splitting the matmul.
    """
    if not is_for_one_cpu():
        return _dot(y, x, (0, 0), FLOAT32).T
    if x.shape[1] > y.shape[1]:
        return matmul_tn(y, x).T
    return _row_major(_dot(_row_major(x.T), y, (1, 0), FLOAT32))


def _row_major(x: jax.Array) -> jax.Array:
    """Makes XLA compute x with contiguous rows, and not fold a transpose into the matmul."""
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


def _dot(a: jax.Array, b: jax.Array, contracting: tuple[int, int], dtype: jnp.dtype) -> jax.Array:
    # `contracting` is the axis of a and the axis of b that the matmul sums over.
    # On CPUs only matmuls with a float32 result use the instructions for bfloat16.
    result_dtype = FLOAT32 if target_platform() == "cpu" else dtype
    dimensions = ((contracting[:1], contracting[1:]), ((), ()))
    return jax.lax.dot_general(a, b, dimensions, preferred_element_type=result_dtype).astype(dtype)
