"""Norms of gradients and parameters: of all together, and by module."""

import math

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from transformer.distributed.mesh import tree_shardings

MODULE_DEPTH = 4  # parts of a module's name: encoder.layers.0.self_attention


def global_norm(mesh: Mesh, tree) -> jax.Array:
    """Returns the Euclidean norm of all leaves together.

    The leaves are sharded over the mesh like parameters. The result is the norm of the norms of all
    rows, which compilers fuse into the computation of the matrices. It needs one collective.
    """
    leaves = jax.tree.leaves(tree)
    specs = tuple(sharding.spec for sharding in jax.tree.leaves(tree_shardings(mesh, tree)))

    def sum_squares(*shards):
        norms = []
        for shard, spec in zip(shards, specs, strict=True):
            row_norms = shard
            if shard.ndim > 1:
                row_norms = jnp.sqrt(jnp.sum(jnp.square(shard), axis=-1)).ravel()
            # Several devices have copies of the shard. Their squares must add up to one.
            parts = math.prod(mesh.shape[axis] for axis in spec if axis is not None)
            copies = mesh.size // parts
            norms.append(row_norms * copies**-0.5)
        squares = jnp.square(jnp.concatenate(norms))
        return jax.lax.psum(jnp.sum(squares), mesh.axis_names)

    # The check of replication cannot know that copies are counted once in all.
    sum_over_devices = jax.shard_map(
        sum_squares,
        mesh=mesh,
        in_specs=specs,
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    return jnp.sqrt(sum_over_devices(*leaves))


def module_norms(gradients: dict, parameters: dict) -> dict[str, jax.Array]:
    """Returns the norm of each module's gradients and weights.

    Example keys: "gradient_norm/encoder.layers.0.feed_forward" and "weight_norm/decoder.embedding".
    """
    norms = {}
    for kind, tree in (("gradient_norm", gradients), ("weight_norm", parameters)):
        for module, norm in norms_by_module(tree).items():
            norms[f"{kind}/{module}"] = norm
    return norms


def norms_by_module(tree: dict) -> dict[str, jax.Array]:
    """Returns the Euclidean norm of the parameters of each module, by its name."""
    squares: dict[str, jax.Array] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        # A parameter outside of modules, such as output_bias, counts as a module.
        module_path = (path[:-1] or path)[:MODULE_DEPTH]
        module = jax.tree_util.keystr(module_path, simple=True, separator=".")
        squares[module] = squares.get(module, 0.0) + jnp.sum(jnp.square(leaf))
    return {module: jnp.sqrt(value) for module, value in squares.items()}
