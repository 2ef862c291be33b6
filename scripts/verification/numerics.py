"""Matmuls, softmax, norms and attention on a device, with gradients, against float64 formulas.

NumPy computes the formulas on the host.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from flax import nnx
from jax.sharding import Mesh

from configs import base
from scripts.verification.outcomes import Outcome, worst_error
from transformer.distributed.mesh import make_mesh
from transformer.model.attention import dot_product_score, masked_softmax
from transformer.model.fused_attention import ATTENTION_IMPLEMENTATIONS, fused_attention
from transformer.model.masks import Mask
from transformer.model.matmul import flat_matmul
from transformer.model.norms import NORMS, make_norm

BARS = {"float32": 1e-5, "bfloat16": 2**-6}
MATMULS = ((64, 512, 2048), (1, 512, 512), (256, 64, 1000))  # (rows, inner, columns)
# Sizes of attention that all fused implementations can compute: (rows, length, heads, d_k).
LENGTH = 128
SHAPE = (4, LENGTH, 4, 64)


def check_all() -> Iterator[Outcome]:
    """Yields the outcomes of all functions of this module, on the first device."""
    for check in (check_matmuls, check_softmax, check_norms, check_attention):
        yield from check()


@functools.cache
def first_device() -> Mesh:
    return make_mesh(base.get_config(), jax.devices()[:1])


def with_gradients(
    function: Callable, cotangent: np.ndarray, *inputs: jax.Array
) -> list[jax.Array]:
    """Returns the function's result, then its gradients, on the first device.

    The gradients are of the sum over result * cotangent.
    """
    mesh = first_device()

    def loss(*inputs):
        result = function(*inputs)
        return jnp.sum(result.astype(jnp.float32) * cotangent), result

    differentiate = jax.grad(loss, argnums=tuple(range(len(inputs))), has_aux=True)

    def evaluate(*inputs):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            gradients, result = differentiate(*inputs)
        return [result, *gradients]

    # The mesh has one device, and the inputs are placed on it.
    with jax.default_device(mesh.devices.flat[0]):
        return jax.jit(evaluate)(*inputs)


def check_matmuls() -> Iterator[Outcome]:
    random = np.random.default_rng(0)
    for dtype, bar in BARS.items():
        matmul = functools.partial(
            flat_matmul, dtype=jnp.dtype(dtype), output_dtype=jnp.dtype(dtype)
        )
        for rows, inner, columns in MATMULS:
            x = rounded(random.normal(size=(rows, inner)), dtype)
            w = rounded(random.normal(size=(inner, columns)), dtype)
            cotangent = rounded(random.normal(size=(rows, columns)), dtype)

            # As in the model: float32 operands, which the matmul rounds to its dtype.
            operands = [jnp.asarray(array, jnp.float32) for array in (x, w)]
            results = with_gradients(matmul, cotangent, *operands)

            # y = x w, dx = dy w^T, dw = x^T dy.
            exact = [x @ w, cotangent @ w.T, x.T @ cotangent]
            name = f"product of ({rows}, {inner}) and ({inner}, {columns}), {dtype}"
            yield Outcome(name, worst_error(results, exact), bar)


def check_softmax() -> Iterator[Outcome]:
    random = np.random.default_rng(1)
    shape = (2, 4, 64, 64)

    # Scores far apart, so that some weights are close to 0.
    scores = random.normal(size=shape).astype(np.float32) * 5
    cotangent = random.normal(size=shape).astype(np.float32) * 5
    mask = np.tri(64, dtype=bool)[None, None]  # causal, (1, 1, 64, 64)
    softmax = functools.partial(masked_softmax, mask=jnp.asarray(mask))
    results = with_gradients(softmax, cotangent, jnp.asarray(scores))
    weights = softmax64(scores, mask)
    exact = [weights, d_softmax64(weights, cotangent)]
    yield Outcome("softmax", worst_error(results, exact), BARS["float32"])


def check_norms() -> Iterator[Outcome]:
    random = np.random.default_rng(2)
    model_config = base.get_config().model
    shape = (32, model_config.d_model)
    for dtype, bar in BARS.items():
        for norm in NORMS:
            model_config.update({"norm": norm, "dtype": dtype})
            module = make_norm(model_config, nnx.Rngs(0))

            # A mean of 3 shows whether the norm subtracts it.
            x = rounded(random.normal(size=shape) + 3, dtype)
            cotangent = rounded(random.normal(size=shape) + 3, dtype)
            results = with_gradients(module, cotangent, jnp.asarray(x, dtype))
            is_centered = norm == "layer_norm"
            exact = norm64(x, cotangent, model_config.layer_norm_epsilon, is_centered)
            yield Outcome(f"{norm}, {dtype}", worst_error(results, exact), bar)


def check_attention() -> Iterator[Outcome]:
    """Checks plain attention, and the fused implementations of `auto` that run on the device.

    A fused implementation is checked for all masks that it accepts.
    """
    for dtype in BARS:
        for case in attention_cases(dtype):
            yield compare_attention(f"plain attention, {dtype}", plain_attention, dtype, case)

    device = first_device().abstract_mesh.abstract_device
    array = jnp.zeros(SHAPE)

    # One at a time, so that `fused_attention` cannot choose another one.
    for implementation in ATTENTION_IMPLEMENTATIONS["auto"]:
        if device is None or not implementation.runs_on(device):
            continue
        name = implementation.attend.__name__
        attend = functools.partial(fused_attention, [implementation])
        for case in attention_cases("bfloat16"):
            if implementation.accepts(array, array, case.mask.is_packed):
                yield compare_attention(name, attend, "bfloat16", case)


class AttentionCase(NamedTuple):
    """Inputs of attention, with a mask and a cotangent that is 0 at padding.

    The inputs are queries, keys and values, each of SHAPE.
    """

    name: str
    inputs: list[np.ndarray]
    cotangent: np.ndarray
    mask: Mask


def attention_cases(dtype: str) -> Iterator[AttentionCase]:
    random = np.random.default_rng(3)
    inputs = [rounded(random.normal(size=SHAPE), dtype) for _ in range(3)]

    # Several sentences in a row, and rows with one sentence and padding.
    packed = segments([[5, 60, 20], [64, 64], [1], [100, 3]])
    padded = segments([[5], [LENGTH], [1], [100]])
    other = segments([[100], [1], [LENGTH], [5]])
    for name, target, source in (("padded", padded, other), ("packed", packed, packed)):
        is_token = (target != 0)[:, :, None, None]  # (rows, length, 1, 1)
        cotangent = rounded(random.normal(size=SHAPE), dtype) * is_token
        for kind in ("self", "causal", "cross"):
            # Cross-attention reads the segments of the source.
            keys = source if kind == "cross" else target
            mask = Mask(jnp.asarray(target), jnp.asarray(keys), kind == "causal", name == "packed")
            yield AttentionCase(f"{kind}, {name}", inputs, cotangent, mask)


def compare_attention(name: str, attend: Callable, dtype: str, case: AttentionCase) -> Outcome:
    arrays = [jnp.asarray(array, dtype) for array in case.inputs]
    results = with_gradients(lambda *arrays: attend(*arrays, case.mask), case.cotangent, *arrays)

    exact = attention64(*case.inputs, case.cotangent, np.asarray(case.mask.dense))

    # Fused attention may write any finite value where a position attends to nothing.
    is_token = np.asarray(case.mask.query_segments != 0)[:, :, None, None]
    results[0] = np.where(is_token, results[0], 0)
    return Outcome(f"{name}, {case.name}", worst_error(results, exact), 2 * BARS[dtype])


def segments(sentences: list[list[int]]) -> np.ndarray:
    """Returns the segments (rows, LENGTH) of rows with sentences of these lengths."""
    rows = np.zeros((len(sentences), LENGTH), np.int32)
    for row, lengths in zip(rows, sentences, strict=True):
        row[: sum(lengths)] = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    return rows


def plain_attention(
    queries: jax.Array, keys: jax.Array, values: jax.Array, mask: Mask
) -> jax.Array:
    weights = masked_softmax(dot_product_score(queries, keys), mask.dense)
    return jnp.einsum("bhts,bshd->bthd", weights.astype(values.dtype), values)


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """Returns the array in float64, after rounding it to the dtype."""
    return np.asarray(array.astype(jnp.dtype(dtype)), np.float64)


def softmax64(scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Returns the softmax over the scores where the mask is true, and 0 elsewhere."""
    masked = np.where(mask, scores.astype(np.float64), -1e30)
    return scipy.special.softmax(masked, axis=-1) * mask  # 0 also in rows without a true value


def d_softmax64(weights: np.ndarray, d_weights: np.ndarray) -> np.ndarray:
    return weights * (d_weights - np.sum(weights * d_weights, axis=-1, keepdims=True))


def attention64(queries, keys, values, cotangent, mask) -> list[np.ndarray]:
    """Returns the heads, and the gradients of queries, keys and values (equation 1)."""
    scale = 1 / math.sqrt(queries.shape[-1])
    weights = softmax64(np.einsum("bthd,bshd->bhts", queries, keys) * scale, mask)

    # Backward through the weighted values, the softmax and the scaled scores.
    d_scores = d_softmax64(weights, np.einsum("bthd,bshd->bhts", cotangent, values)) * scale
    return [
        np.einsum("bhts,bshd->bthd", weights, values),
        np.einsum("bhts,bshd->bthd", d_scores, keys),
        np.einsum("bhts,bthd->bshd", d_scores, queries),
        np.einsum("bhts,bthd->bshd", weights, cotangent),
    ]


def norm64(
    x: np.ndarray, cotangent: np.ndarray, epsilon: float, is_centered: bool
) -> list[np.ndarray]:
    """Returns the normalized rows, with a scale of 1 and no bias, and their gradient."""
    # Layer normalization (Ba et al. 2016), or RMS normalization without centering.
    mean = functools.partial(np.mean, axis=-1, keepdims=True)
    centered = x - mean(x) if is_centered else x
    inverse = 1 / np.sqrt(mean(centered**2) + epsilon)
    y = centered * inverse

    # The gradient has no part along y, and none along a constant if x is centered.
    d_x = cotangent - y * mean(cotangent * y)
    if is_centered:
        d_x -= mean(cotangent)
    return [y, inverse * d_x]
