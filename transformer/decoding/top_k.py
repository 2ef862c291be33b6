"""The largest logits of large vocabularies, and the selection of elements."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

GROUP = 64  # neighbours that are represented by their maximum


def top_k(x: Float[Array, "*B V"], k: int) -> tuple[Float[Array, "*B k"], Int[Array, "*B k"]]:
    """Returns the k largest elements and their indices, as `jax.lax.top_k` does.

    On CPUs it takes a fifth of the time of `jax.lax.top_k` for rows of 32,000 elements. The k
    largest elements are in the k groups with the largest maxima, so only these groups are searched.
    """
    size = x.shape[-1]
    if size <= k * GROUP:
        return tuple(jax.lax.top_k(x, k))
    rows = x.reshape(-1, size)
    num_rows = rows.shape[0]
    padding = ((0, 0), (0, -size % GROUP))
    padded = jnp.pad(rows, padding, constant_values=-jnp.inf)
    grouped = padded.reshape(num_rows, -1, GROUP)  # (rows, groups, GROUP)

    # The groups ascend, so that the first of equal elements wins.
    _, groups = jax.lax.top_k(grouped.max(axis=2), k)
    groups = jnp.sort(groups, axis=1)
    candidates = jnp.take_along_axis(grouped, groups[..., None], axis=1)  # (rows, k, GROUP)
    values, index = jax.lax.top_k(candidates.reshape(num_rows, -1), k)

    # From an index among the candidates to an index of x.
    group = jnp.take_along_axis(groups, index // GROUP, axis=1)
    index = group * GROUP + index % GROUP
    shape = (*x.shape[:-1], k)
    return values.reshape(shape), index.reshape(shape)


def gather(tree: Any, index: Int[Array, "B N"]) -> Any:
    """Returns x[b, index[b, n]] for every b and n, for each array x of a pytree."""
    return jax.vmap(lambda rows, i: jax.tree.map(lambda x: x[i], rows))(tree, index)
