"""Device meshes, and sharding over them: one rule per kind of parameter; batches by rows."""

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
# Tensor parallelism splits the inner dimension of a sub-layer's two products, so that one
# all-reduce per sub-layer suffices (Megatron-LM). FSDP splits the other dimension.
COLUMNS = ("query", "key", "value", "inner", "gate", "projection", "input", "forget")
RULES = dict.fromkeys(COLUMNS, P("fsdp", "tensor"))
RULES |= dict.fromkeys(("output", "outer", "embedding"), P("tensor", "fsdp"))


def make_mesh(config: Config, devices: Sequence[jax.Device]) -> Mesh:
    """Returns the mesh of `config.mesh`.

    Raises UserError if it does not use all devices or share the rows evenly.
    """
    requested = config.mesh
    count = len(devices)
    multiple = config.batch.row_multiple
    inner = requested.fsdp * requested.tensor
    data = count // inner if requested.data == -1 else requested.data
    if data * inner != count:
        raise UserError(
            f"mesh.data={requested.data} mesh.fsdp={requested.fsdp} mesh.tensor={requested.tensor}: the product must "
            f"be {count}, the number of devices (mesh.data=-1 takes what the other two leave)"
        )
    if multiple % (data * requested.fsdp):
        raise UserError(
            f"batch.row_multiple={multiple}: must be a multiple of the {data} x {requested.fsdp} devices (mesh.data x "
            "mesh.fsdp) that share the rows; raise it at the start of the run, or take fewer devices"
        )
    # On TPUs neighbouring devices are next to each other. jax.make_mesh does the same, but refuses
    # GPUs of several hosts, and sizes that the axes of a TPU's torus do not multiply to.
    shape = data, requested.fsdp, requested.tensor
    placed = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    return Mesh(placed, AXES, axis_types=AXIS_TYPES)


def abstract_arrays(shapes, shardings):
    """Returns the tree of shapes with shardings, for which a program can be compiled."""
    return jax.tree.map(lambda leaf, sharding: leaf.update(sharding=sharding), shapes, shardings)


def tree_shardings(mesh: Mesh, tree):
    """Returns the sharding of each leaf of parameters or optimizer state; what the mesh does not
    divide stays whole.
    """

    def place(path, leaf) -> NamedSharding:
        dimensions = (
            zip(sharding_rule(path), leaf.shape, strict=False) if len(leaf.shape) == 2 else ()
        )
        return NamedSharding(
            mesh, P(*(axis if size % mesh.shape[axis] == 0 else None for axis, size in dimensions))
        )

    return jax.tree_util.tree_map_with_path(place, tree)


def sharding_rule(path: tuple) -> P:
    """Returns the axes of a matrix at this path of a tree, by the last name that has a rule; none
    without one.
    """
    names = jax.tree_util.keystr(path, simple=True, separator=".").split(".")
    return next((RULES[name] for name in reversed(names) if name in RULES), P())
