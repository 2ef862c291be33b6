"""The mesh that the caller activates with `jax.sharding.use_abstract_mesh`: its platform, and shardings over it."""

import math

import jax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec
from jaxtyping import Array, Float

ROW_AXES = ("data", "fsdp")


def row_shards(mesh: Mesh | AbstractMesh) -> int:
    """Returns the number of parts into which the mesh splits the rows of a batch."""
    return math.prod(mesh.shape[axis] for axis in ROW_AXES)


def shard_rows(x: Float[Array, "B *rest"]) -> Float[Array, "B *rest"]:
    """Constrains the rows of `x`, and of its gradient, to the mesh axes that share the batch.

    Without it the compiler follows the weights, which "fsdp" shards too, and keeps the whole batch on every device.
    Without a mesh, x is returned unchanged.
    """
    is_sharded = not jax.sharding.get_abstract_mesh().empty
    return jax.lax.with_sharding_constraint(x, PartitionSpec(ROW_AXES)) if is_sharded else x


def target_platform() -> str:
    """Returns the platform of the active mesh, "cpu", "gpu" or "tpu"; its devices may be absent. Default: JAX's."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def is_for_one_cpu() -> bool:
    """Tells whether the traced program is for a single CPU device."""
    mesh = jax.sharding.get_abstract_mesh()
    return target_platform() == "cpu" and (mesh.empty or mesh.size == 1)
