"""Invalid meshes. test_mesh.py tests training on valid meshes."""

import jax
import pytest

from configs import base
from transformer.distributed.mesh import make_mesh
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
