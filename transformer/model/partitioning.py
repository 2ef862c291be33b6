"""The platform of the traced program, and shardings over its mesh.

The mesh is the one that the caller activates with `jax.sharding.use_abstract_mesh`.
"""

import math

import jax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec
from jaxtyping import Array, Float

ROW_AXES = ("data", "fsdp")


def row_shards(mesh: Mesh | AbstractMesh) -> int:
    """Returns the number of parts into which the mesh splits the rows of a batch."""
    return math.prod(mesh.shape[axis] for axis in ROW_AXES)


def shard_rows(x: Float[Array, "B ..."]) -> Float[Array, "B ..."]:
    """Constrains the rows of `x`, and of its gradient, to the mesh axes that split the batch.

    Without the constraint, the compiler follows the weights, which "fsdp" shards too, and keeps the
    whole batch on every device. Without a mesh, returns x unchanged.
    """
    return _constrain(x, PartitionSpec(ROW_AXES))


def shard_lookup(x: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
    """Constrains the rows of vectors that are looked up in a table, like `shard_rows`.

    "fsdp" splits the columns of the table, and so the columns of the vectors. An all-to-all
    exchanges columns for rows. Without the first constraint, a mesh with "data" and "fsdp" above 1
    would look up all rows on every device and replicate them to reshard them.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty and x.shape[-1] % mesh.shape["fsdp"] == 0:
        x = _constrain(x, PartitionSpec("data", None, "fsdp"))
    return shard_rows(x)


def _constrain(x: Float[Array, "*shape"], spec: PartitionSpec) -> Float[Array, "*shape"]:
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, spec)


def materialize(x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """Constrains the rows of x like `shard_rows`. On CPUs, also makes XLA compute x once.

    XLA on CPUs fuses elementwise results into their uses: every matmul would recompute the
    residual stream of all layers before it, dropout included. The barrier holds for the gradient of
    x too. On accelerators it would only add memory traffic.
    """
    x = shard_rows(x)
    return jax.lax.optimization_barrier(x) if target_platform() == "cpu" else x


def target_platform() -> str:
    """Returns the platform of the active mesh: "cpu", "gpu" or "tpu".

    The devices of the mesh may be absent. Without a mesh, returns JAX's default platform.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def is_for_one_cpu() -> bool:
    """True if the traced program is for a single CPU device."""
    mesh = jax.sharding.get_abstract_mesh()
    return target_platform() == "cpu" and (mesh.empty or mesh.size == 1)
