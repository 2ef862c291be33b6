"""Invalid meshes. test_mesh.py tests training on valid meshes."""

import inspect
from dataclasses import dataclass

import jax
import pytest

from configs import base
from transformer.distributed.mesh import make_mesh
from transformer.support.errors import UserError


@pytest.mark.parametrize("changes", [{"fsdp": 2}, {"data": 2}, {"data": 3, "tensor": 5}])
def test_a_mesh_must_use_the_devices_there_are(changes):
    config = base.get_config()
    config.mesh.update(changes)
    with pytest.raises(UserError, match="mesh.data=.*: the product must be 1, "):
        make_mesh(config, jax.devices()[:1])


@dataclass(frozen=True)
class Gpu:
    id: int
    slice_index: int
    process_index: int
    platform: str = "gpu"
    device_kind: str = "NVIDIA H100"


def test_gpus_of_several_hosts_are_a_mesh_whose_inner_axes_stay_within_a_host():
    """Devices of two hosts, which jax.make_mesh refuses, in the order of their processes."""
    devices = [Gpu(i, slice_index=i // 4, process_index=i // 4) for i in (4, 5, 6, 7, 0, 1, 2, 3)]
    config = base.get_config()
    config.mesh.update({"fsdp": 2, "tensor": 2})
    mesh = inspect.unwrap(make_mesh)(config, devices)  # without the check of types
    hosts = [[device.slice_index for device in row.flat] for row in mesh.devices]
    assert hosts == [[0] * 4, [1] * 4]


def test_devices_must_share_rows_evenly():
    config = base.get_config()
    config.batch.row_multiple = 8
    with pytest.raises(
        UserError, match="batch.row_multiple=8: must be a multiple of the 3 x 1 devices"
    ):
        make_mesh(config, jax.devices()[:1] * 3)
