"""Sharding over a device mesh: one rule per kind of parameter; batches by rows."""

from collections.abc import Iterable, Mapping

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Bool

BATCH = P(("data", "fsdp"))
# Tensor parallelism splits the inner dimension of a sub-layer's two products, so that one all-reduce per sub-layer
# suffices (Megatron-LM). FSDP splits the other dimension.
RULES = {
    "query": P("fsdp", "tensor"),
    "key": P("fsdp", "tensor"),
    "value": P("fsdp", "tensor"),
    "output": P("tensor", "fsdp"),
    "inner": P("fsdp", "tensor"),
    "gate": P("fsdp", "tensor"),
    "outer": P("tensor", "fsdp"),
    "embedding": P("tensor", "fsdp"),
    "projection": P("fsdp", "tensor"),
}


def held_rows(num_rows: int, mesh: Mesh, devices: Iterable) -> Bool[np.ndarray, " B"]:
    """Returns which rows of a batch these devices of the mesh hold; the mesh divides the rows evenly."""
    indices = NamedSharding(mesh, BATCH).devices_indices_map((num_rows,))
    held = np.zeros(num_rows, bool)
    for device in devices:
        held[indices[device]] = True
    return held


def place_held_rows(arrays: Mapping[str, np.ndarray], held: Bool[np.ndarray, " B"], mesh: Mesh) -> dict[str, jax.Array]:
    """Shards a batch by rows over the mesh, where each process has only the rows that its own devices hold.

    Args:
      arrays: the rows of this process, in their order in the batch.
      held: which rows of the batch these are, from `held_rows`.
    """
    sharding, numbers = NamedSharding(mesh, BATCH), np.cumsum(held) - 1

    def place(array: np.ndarray) -> jax.Array:
        def shard(index: tuple[slice, ...]) -> np.ndarray:
            start, stop, _ = index[0].indices(len(held))
            return array[numbers[start] : numbers[stop - 1] + 1]

        return jax.make_array_from_callback((len(held), *array.shape[1:]), sharding, shard)

    return {name: place(array) for name, array in arrays.items()}


def abstract_arrays(shapes, shardings):
    """Returns the tree of shapes with shardings, for which a program can be compiled."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes, shardings
    )


def tree_shardings(mesh: Mesh, tree):
    """Returns the sharding of every leaf of parameters, or of an optimizer's state, which has the same names.

    A dimension that the mesh does not divide stays whole; vectors and scalars are on every device.
    """

    def place(path, leaf) -> NamedSharding:
        names = [str(getattr(key, "key", getattr(key, "name", ""))) for key in path]
        rule = next((RULES[name] for name in reversed(names) if name in RULES), P())
        if len(leaf.shape) != 2:
            return NamedSharding(mesh, P())
        fits = [
            axis if axis is not None and size % mesh.shape[axis] == 0 else None
            for axis, size in zip((*rule, None, None), leaf.shape, strict=False)
        ]
        return NamedSharding(mesh, P(*fits))

    return jax.tree_util.tree_map_with_path(place, tree)
