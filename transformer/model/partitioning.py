"""The mesh that the caller activates with `jax.sharding.use_abstract_mesh`: its platform, and
shardings over it.
"""

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

    Without it the compiler follows the weights, which "fsdp" shards too, and keeps the whole batch
    on every device. Without a mesh, x is returned unchanged.
    """
    return _constrain(x, PartitionSpec(ROW_AXES))


def shard_lookup(x: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
    """Constrains the rows of a table's vectors, whose columns "fsdp" splits as those of the table,
    like `shard_rows`.

    An all-to-all exchanges columns for rows. Without the first constraint, a mesh with "data" and
    "fsdp" above 1 would look up all rows on every device, and replicate them to reshard them.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty and x.shape[-1] % mesh.shape["fsdp"] == 0:
        x = _constrain(x, PartitionSpec("data", None, "fsdp"))
    return shard_rows(x)


def _constrain(x: Float[Array, "*shape"], spec: PartitionSpec) -> Float[Array, "*shape"]:
    return (
        x if jax.sharding.get_abstract_mesh().empty else jax.lax.with_sharding_constraint(x, spec)
    )


def target_platform() -> str:
    """Returns the platform of the active mesh, "cpu", "gpu" or "tpu"; its devices may be absent.

    Default: JAX's.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def is_for_one_cpu() -> bool:
    """Tells whether the traced program is for a single CPU device."""
    mesh = jax.sharding.get_abstract_mesh()
    return target_platform() == "cpu" and (mesh.empty or mesh.size == 1)
