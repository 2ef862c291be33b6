"""The largest logits and the normalizer of large vocabularies, and the selection of elements."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# Neighbours form groups, and the maximum of a group represents it.
GROUP_SIZES = range(32, 129)
BEST_GROUP_SIZE = 64


def top_k(x: Float[Array, "*B V"], k: int) -> tuple[Float[Array, "*B k"], Int[Array, "*B k"]]:
    """Returns the k largest elements and their indices, as `jax.lax.top_k` does.

    On CPUs it takes a fifth of the time of `jax.lax.top_k` for rows of 32,000 elements. The k
    largest elements are in the k groups with the largest maxima, so only these groups are searched.
    """
    grouped = _group(x)
    num_rows, num_groups, size = grouped.shape
    if num_groups <= k:
        values, indices = jax.lax.top_k(x, k)
        return values, indices

    # The groups ascend, so that the first of equal elements wins.
    _, groups = jax.lax.top_k(grouped.max(axis=2), k)
    groups = jnp.sort(groups, axis=1)
    candidates = jnp.take_along_axis(grouped, groups[..., None], axis=1)  # (rows, k, size)
    values, index = jax.lax.top_k(candidates.reshape(num_rows, -1), k)

    # From an index among the candidates to an index of x.
    group = jnp.take_along_axis(groups, index // size, axis=1)
    index = group * size + index % size
    shape = (*x.shape[:-1], k)
    return values.reshape(shape), index.reshape(shape)


def logsumexp(x: Float[Array, "*B V"]) -> Float[Array, "*B"]:
    """Returns log(sum(exp(x))) for rows with a finite maximum.

    It takes the maximum of the maxima of groups, which XLA computes once for this and `top_k`.
    """
    # Without the barrier, XLA computes the maximum directly, in another pass over x.
    maxima = jax.lax.optimization_barrier(_group(x).max(axis=2))
    maximum = maxima.max(axis=1).reshape(x.shape[:-1])
    return maximum + jnp.log(jnp.exp(x - maximum[..., None]).sum(axis=-1))


def _group(x: Float[Array, "*B V"]) -> Float[Array, "rows groups size"]:
    """Returns neighbours in groups of one size."""
    rows = x.reshape(-1, x.shape[-1])

    # A divisor of V needs no padding, which would copy x.
    divisors = [size for size in GROUP_SIZES if x.shape[-1] % size == 0]
    size = min(divisors, key=lambda size: abs(size - BEST_GROUP_SIZE), default=BEST_GROUP_SIZE)
    padding = ((0, 0), (0, -x.shape[-1] % size))
    padded = jnp.pad(rows, padding, constant_values=-jnp.inf)
    return padded.reshape(rows.shape[0], -1, size)


def gather(tree: Any, index: Int[Array, "B N"]) -> Any:
    """Returns x[b, index[b, n]] for every b and n, for each array x of a pytree."""
    return jax.vmap(lambda rows, i: jax.tree.map(lambda x: x[i], rows))(tree, index)
