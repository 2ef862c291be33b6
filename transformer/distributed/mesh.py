"""Device meshes, and sharding over them.

Each kind of parameter has a rule. Batches are sharded by rows.
"""

from collections.abc import Sequence

import jax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from transformer.config.types import Config
from transformer.support.errors import UserError

AXES = ("data", "fsdp", "tensor")
AXIS_TYPES = (AxisType.Auto,) * len(AXES)  # the default is Explicit since JAX 0.11
BATCH = P(("data", "fsdp"))
# Tensor parallelism splits the inner dimension of a sub-layer's two matmuls, so that one all-reduce
# per sub-layer suffices (Megatron-LM). FSDP splits the other dimension.
COLUMNS = ("query", "key", "value", "inner", "gate", "projection", "input", "forget")
RULES = dict.fromkeys(COLUMNS, P("fsdp", "tensor"))
RULES |= dict.fromkeys(("output", "outer", "embedding"), P("tensor", "fsdp"))


def make_mesh(config: Config, devices: Sequence[jax.Device]) -> Mesh:
    """Returns the mesh of `config.mesh`.

    Raises UserError if it does not use all devices or share the rows evenly.
    """
    count = len(devices)
    multiple = config.batch.row_multiple
    fsdp = config.mesh.fsdp
    tensor = config.mesh.tensor
    data = config.mesh.data
    if data == -1:
        data = count // (fsdp * tensor)
    if data * fsdp * tensor != count:
        raise UserError(
            f"mesh.data={config.mesh.data} mesh.fsdp={fsdp} mesh.tensor={tensor}: the product "
            f"must be {count}, the number of devices (mesh.data=-1 takes what the other two leave)"
        )
    # Batches are sharded over both axes (`BATCH`).
    if multiple % (data * fsdp):
        raise UserError(
            f"batch.row_multiple={multiple}: must be a multiple of the {data} x {fsdp} devices "
            "(mesh.data x mesh.fsdp) that share the rows; raise it at the start of the run, or "
            "take fewer devices"
        )
    # On TPUs, this makes devices neighbours that are physically adjacent. jax.make_mesh does the
    # same, but refuses GPUs of several hosts, and sizes that the axes of a TPU's torus do not
    # multiply to.
    grid = mesh_utils.create_device_mesh(
        (data, fsdp, tensor), devices, allow_split_physical_axes=True
    )
    return Mesh(grid, AXES, axis_types=AXIS_TYPES)


def abstract_arrays(shapes, shardings):
    """Returns the tree of shapes with shardings, for which a program can be compiled."""
    return jax.tree.map(lambda leaf, sharding: leaf.update(sharding=sharding), shapes, shardings)


def tree_shardings(mesh: Mesh, tree):
    """Returns the sharding of each leaf of parameters or optimizer state.

    Only matrices are split, in the dimensions that the mesh divides.
    """

    def place(path, leaf) -> NamedSharding:
        # Vectors, and dimensions that the axis does not divide, stay whole.
        rule = sharding_rule(path) if len(leaf.shape) == 2 else P()
        axes = [
            axis if size % mesh.shape[axis] == 0 else None
            for axis, size in zip(rule, leaf.shape, strict=False)
        ]
        return NamedSharding(mesh, P(*axes))

    return jax.tree_util.tree_map_with_path(place, tree)


def sharding_rule(path: tuple) -> P:
    """Returns the mesh axes of a matrix, by the last name in its path that has a rule."""
    names = jax.tree_util.keystr(path, simple=True, separator=".").split(".")
    return next((RULES[name] for name in reversed(names) if name in RULES), P())
