"""The device mesh of a run, and a mesh of one device."""

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from transformer.config_types import Config
from transformer.errors import UserError

AXES = ("data", "fsdp", "tensor")
AXIS_TYPES = (AxisType.Auto,) * len(AXES)  # the default is Explicit since JAX 0.11


def make_mesh(config: Config, devices: Sequence[jax.Device]) -> Mesh:
    """Returns the mesh that `config.mesh` describes, over these devices.

    Raises UserError if it does not use all of them, or cannot split the rows of batches evenly.
    """
    requested, count, multiple = config.mesh, len(devices), config.batch.row_multiple
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
            "mesh.fsdp) that share the rows; raise it at the start of the run, since it changes the batches (fewer "
            "devices can share them as well)"
        )
    # On TPUs it places neighbouring devices next to each other.
    return jax.make_mesh((data, requested.fsdp, requested.tensor), AXES, AXIS_TYPES, devices=devices)


def one_device() -> Mesh:
    """Returns a mesh of the first device of this process."""
    return Mesh(np.reshape(jax.local_devices()[:1], (1, 1, 1)), AXES, AXIS_TYPES)
