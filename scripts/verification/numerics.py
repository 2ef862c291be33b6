"""Products, softmax, norms and attention on a device, with their gradients, against formulas in
float64 on the host.
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
from transformer.model.kernels import flat_product
from transformer.model.masks import Mask
from transformer.model.norms import NORMS, make_norm

BARS = {"float32": 1e-5, "bfloat16": 2**-6}
# Sizes of attention that all kernels can compute
ROWS = 4
LENGTH = 128
HEADS = 4
WIDTH = 64


def check_all() -> Iterator[Outcome]:
    """Yields the outcomes of all functions of this module, on the first device."""
    for check in (check_products, check_softmax, check_norms, check_attention):
        yield from check()


@functools.cache
def first_device() -> Mesh:
    return make_mesh(base.get_config(), jax.devices()[:1])


def with_gradients(
    function: Callable, cotangent: np.ndarray, *inputs: jax.Array
) -> list[jax.Array]:
    """Returns the function's result, and the gradients of its product with the cotangent, on the
    first device.
    """
    mesh = first_device()

    def loss(*inputs):
        result = function(*inputs)
        return jnp.sum(result.astype(jnp.float32) * cotangent), result

    def evaluate(*inputs):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            gradients, result = jax.grad(loss, argnums=tuple(range(len(inputs))), has_aux=True)(
                *inputs
            )
        return [result, *gradients]

    with jax.default_device(mesh.devices.flat[0]):
        return jax.jit(evaluate)(*inputs)


def check_products() -> Iterator[Outcome]:
    random = np.random.default_rng(0)
    for dtype, bar in BARS.items():
        for rows, inner, columns in ((64, 512, 2048), (1, 512, 512), (256, 64, 1000)):
            x, w, cotangent = (
                rounded(random.normal(size=shape), dtype)
                for shape in ((rows, inner), (inner, columns), (rows, columns))
            )
            product = functools.partial(
                flat_product, dtype=jnp.dtype(dtype), output_dtype=jnp.dtype(dtype)
            )
            found = with_gradients(
                product, cotangent, *(jnp.asarray(array, jnp.float32) for array in (x, w))
            )
            exact = [x @ w, cotangent @ w.T, x.T @ cotangent]
            name = f"product of ({rows}, {inner}) and ({inner}, {columns}), {dtype}"
            yield Outcome(name, worst_error(found, exact), bar)


def check_softmax() -> Iterator[Outcome]:
    random = np.random.default_rng(1)
    scores, cotangent = (
        random.normal(size=(2, 4, 64, 64)).astype(np.float32) * 5 for _ in range(2)
    )
    mask = np.tri(64, dtype=bool)[None, None]
    found = with_gradients(
        lambda x: masked_softmax(x, jnp.asarray(mask)), cotangent, jnp.asarray(scores)
    )
    weights = softmax64(scores, mask)
    exact = [weights, d_softmax64(weights, cotangent)]
    yield Outcome("softmax", worst_error(found, exact), BARS["float32"])


def check_norms() -> Iterator[Outcome]:
    random = np.random.default_rng(2)
    config = base.get_config().model
    for dtype, bar in BARS.items():
        for norm in NORMS:
            config.update({"norm": norm, "dtype": dtype})
            module = make_norm(config, nnx.Rngs(0))
            x, cotangent = (
                rounded(random.normal(size=(32, config.d_model)) + 3, dtype) for _ in range(2)
            )
            found = with_gradients(module, cotangent, jnp.asarray(x, dtype))
            exact = norm64(
                x, cotangent, config.layer_norm_epsilon, is_centered=norm == "layer_norm"
            )
            yield Outcome(f"{norm}, {dtype}", worst_error(found, exact), bar)


def check_attention() -> Iterator[Outcome]:
    """Checks plain attention, and each kernel of `auto` that the device runs, for all masks that it
    accepts.
    """
    device = first_device().abstract_mesh.abstract_device
    for dtype in BARS:
        for case in attention_cases(dtype):
            yield compare_attention(f"plain attention, {dtype}", plain_attention, dtype, case)
    for kernel in ATTENTION_IMPLEMENTATIONS["auto"]:
        if device is None or not kernel.runs_on(device):
            continue
        attend = functools.partial(fused_attention, [kernel])
        shape = (ROWS, LENGTH, HEADS, WIDTH)
        for case in attention_cases("bfloat16"):
            if kernel.accepts(jnp.zeros(shape), jnp.zeros(shape), case.mask.is_packed):
                yield compare_attention(kernel.attend.__name__, attend, "bfloat16", case)


class AttentionCase(NamedTuple):
    """Queries, keys and values (ROWS, LENGTH, HEADS, WIDTH), a mask, and a cotangent that is 0 at
    padding.
    """

    name: str
    inputs: list[np.ndarray]
    cotangent: np.ndarray
    mask: Mask


def attention_cases(dtype: str) -> Iterator[AttentionCase]:
    random = np.random.default_rng(3)
    inputs = [rounded(random.normal(size=(ROWS, LENGTH, HEADS, WIDTH)), dtype) for _ in range(3)]
    packed = segments([[5, 60, 20], [64, 64], [1], [100, 3]])
    padded = segments([[5], [LENGTH], [1], [100]])
    other = segments([[100], [1], [LENGTH], [5]])
    for name, target, source in (("padded", padded, other), ("packed", packed, packed)):
        cotangent = (
            rounded(random.normal(size=inputs[0].shape), dtype) * (target != 0)[:, :, None, None]
        )
        for kind in ("self", "causal", "cross"):
            keys = source if kind == "cross" else target
            mask = Mask(jnp.asarray(target), jnp.asarray(keys), kind == "causal", name == "packed")
            yield AttentionCase(f"{kind}, {name}", inputs, cotangent, mask)


def compare_attention(name: str, attend: Callable, dtype: str, case: AttentionCase) -> Outcome:
    arrays = [jnp.asarray(array, dtype) for array in case.inputs]
    found = with_gradients(lambda *arrays: attend(*arrays, case.mask), case.cotangent, *arrays)
    exact = attention64(*case.inputs, case.cotangent, np.asarray(case.mask.dense))
    # Kernels may write anything finite where a position attends to nothing.
    found[0] = np.where(np.asarray(case.mask.query_segments != 0)[:, :, None, None], found[0], 0)
    return Outcome(f"{name}, {case.name}", worst_error(found, exact), 2 * BARS[dtype])


def segments(sentences: list[list[int]]) -> np.ndarray:
    """Returns the segments (ROWS, LENGTH) of rows that hold sentences of these lengths."""
    rows = np.zeros((len(sentences), LENGTH), np.int32)
    for row, lengths in zip(rows, sentences, strict=True):
        row[: sum(lengths)] = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    return rows


def plain_attention(
    queries: jax.Array, keys: jax.Array, values: jax.Array, mask: Mask
) -> jax.Array:
    weights = masked_softmax(dot_product_score(queries, keys), mask.dense).astype(values.dtype)
    return jnp.einsum("bhts,bshd->bthd", weights, values)


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """Returns the array in float64 with values that the dtype has."""
    return np.asarray(array.astype(jnp.dtype(dtype)), np.float64)


def softmax64(scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Returns the softmax over the scores where the mask is set, and 0 elsewhere, also in rows
    without any.
    """
    return scipy.special.softmax(np.where(mask, scores.astype(np.float64), -1e30), axis=-1) * mask


def d_softmax64(weights: np.ndarray, d_weights: np.ndarray) -> np.ndarray:
    return weights * (d_weights - np.sum(weights * d_weights, axis=-1, keepdims=True))


def attention64(queries, keys, values, cotangent, mask) -> list[np.ndarray]:
    """Returns the heads and the gradients of queries, keys and values (equation 1)."""
    scale = 1 / math.sqrt(queries.shape[-1])
    weights = softmax64(np.einsum("bthd,bshd->bhts", queries, keys) * scale, mask)
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
    centered = x - x.mean(axis=-1, keepdims=True) if is_centered else x
    inverse = 1 / np.sqrt(np.mean(centered**2, axis=-1, keepdims=True) + epsilon)
    y = centered * inverse
    d_x = cotangent - y * np.mean(cotangent * y, axis=-1, keepdims=True)
    d_x = d_x - cotangent.mean(axis=-1, keepdims=True) if is_centered else d_x
    return [y, inverse * d_x]
