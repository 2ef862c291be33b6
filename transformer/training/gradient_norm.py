"""The norm of the gradient, in few kernels and one collective."""

import math

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from transformer.distributed.mesh import tree_shardings


def global_norm(mesh: Mesh, tree) -> jax.Array:
    """Returns the Euclidean norm of all leaves together, which are sharded over the mesh like parameters.

    It is the norm of the norms of all rows, which a compiler can fuse into the computation of the matrices. Sums of
    whole matrices would take a kernel or two each, and the partitioner might emit an all-reduce for each of them. (XLA
    would split a sum over concatenated sums into those of the matrices again.)
    """
    leaves, shardings = jax.tree.leaves(tree), jax.tree.leaves(tree_shardings(mesh, tree))

    def sum_squares(*shards: jax.Array) -> jax.Array:
        norms = []
        for shard, sharding in zip(shards, shardings, strict=True):
            rows = shard if shard.ndim == 1 else jnp.sqrt(jnp.sum(jnp.square(shard), axis=-1)).ravel()
            norms.append(rows * _copies(sharding) ** -0.5)
        return jax.lax.psum(jnp.sum(jnp.square(jnp.concatenate(norms))), mesh.axis_names)

    specs = tuple(sharding.spec for sharding in shardings)
    # Without the check of replication, which cannot tell that copies are counted once in all.
    total = jax.shard_map(sum_squares, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(*leaves)
    return jnp.sqrt(total)


def _copies(sharding: NamedSharding) -> int:
    """Returns the number of devices that hold each element."""
    shards = math.prod(sharding.mesh.shape[axis] for axis in sharding.spec if axis is not None)
    return sharding.mesh.size // shards
