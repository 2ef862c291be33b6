"""Norms of gradients and parameters: of all together, and by module."""

import math

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from transformer.distributed.mesh import tree_shardings

MODULE_DEPTH = 4  # parts of a module's name: encoder.layers.0.self_attention


def global_norm(mesh: Mesh, tree) -> jax.Array:
    """Returns the Euclidean norm of all leaves together, which are sharded over the mesh like
    parameters.

    It is the norm of the norms of all rows, which compilers fuse into the computation of the
    matrices: one collective.
    """
    leaves, shardings = jax.tree.leaves(tree), jax.tree.leaves(tree_shardings(mesh, tree))

    def sum_squares(*shards: jax.Array) -> jax.Array:
        norms = []
        for shard, sharding in zip(shards, shardings, strict=True):
            rows = (
                shard if shard.ndim == 1 else jnp.sqrt(jnp.sum(jnp.square(shard), axis=-1)).ravel()
            )
            copies = mesh.size // math.prod(
                mesh.shape[axis] for axis in sharding.spec if axis is not None
            )
            norms.append(rows * copies**-0.5)
        return jax.lax.psum(jnp.sum(jnp.square(jnp.concatenate(norms))), mesh.axis_names)

    specs = tuple(sharding.spec for sharding in shardings)
    # Without the check of replication, which cannot tell that copies are counted once in all.
    total = jax.shard_map(
        sum_squares, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False
    )(*leaves)
    return jnp.sqrt(total)


def module_norms(gradients: dict, parameters: dict) -> dict[str, jax.Array]:
    """Returns the norm of each module's gradients and weights, with keys such as
    "weight_norm/decoder.embedding".
    """
    trees = {"gradient_norm": gradients, "weight_norm": parameters}
    return {
        f"{kind}/{name}": norm
        for kind, tree in trees.items()
        for name, norm in norms_by_module(tree).items()
    }


def norms_by_module(tree: dict) -> dict[str, jax.Array]:
    """Returns the Euclidean norm of the parameters of each module, by its name."""
    squares: dict[str, jax.Array] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        module = jax.tree_util.keystr(
            (path[:-1] or path)[:MODULE_DEPTH], simple=True, separator="."
        )
        squares[module] = squares.get(module, 0.0) + jnp.sum(jnp.square(leaf))
    return {module: jnp.sqrt(value) for module, value in squares.items()}
