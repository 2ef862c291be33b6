"""Invalid meshes, and the rows that each process has. test_mesh.py tests training on valid meshes."""

import jax
import numpy as np
import pytest
from jax.sharding import AbstractDevice, Mesh

from configs import base
from transformer.distributed.mesh import AXES, AXIS_TYPES, held_rows, make_mesh
from transformer.errors import UserError


@pytest.mark.parametrize("changes", [{"fsdp": 2}, {"data": 2}, {"data": 3, "tensor": 5}])
def test_a_mesh_must_use_the_devices_there_are(changes):
    config = base.get_config()
    config.mesh.update(changes)
    with pytest.raises(UserError, match="mesh.data=.*: the product must be 1, "):
        make_mesh(config, jax.devices()[:1])


def test_devices_must_share_rows_evenly():
    config = base.get_config()
    config.batch.row_multiple = 8
    with pytest.raises(UserError, match="batch.row_multiple=8: must be a multiple of the 3 x 1 devices"):
        make_mesh(config, jax.devices()[:1] * 3)


def mesh_of(order: list[int], shape: tuple[int, int, int]) -> tuple[Mesh, list[AbstractDevice]]:
    """Returns a mesh of eight stand-ins for devices, and these in the order of their numbers."""
    devices = [AbstractDevice(f"CPU {number}", None, "cpu") for number in range(8)]
    return Mesh(np.reshape([devices[number] for number in order], shape), AXES, AXIS_TYPES), devices


@pytest.mark.parametrize(
    ("order", "shape", "rows"),
    [
        (range(8), (8, 1, 1), [0, 1, 2, 3, 4, 5]),
        (range(8), (2, 2, 2), [0, 1, 2, 3, 4, 5, 6, 7]),
        (range(8), (1, 1, 8), range(16)),
        ([0, 5, 1, 6, 2, 7, 3, 4], (4, 2, 1), [0, 1, 4, 5, 8, 9]),  # as on a torus
    ],
)
def test_a_process_holds_the_rows_of_its_devices(order, shape, rows):
    mesh, devices = mesh_of(list(order), shape)
    assert np.flatnonzero(held_rows(16, mesh, devices[:3])).tolist() == list(rows)
