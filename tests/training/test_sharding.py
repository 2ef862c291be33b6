"""The same update on every mesh of four devices, which a process of its own makes of one CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from configs import base
from transformer.errors import UserError
from transformer.training.sharding import make_mesh

MESHES = [(4, 1, 1), (2, 2, 1), (1, 2, 2)]


@pytest.fixture(scope="module")
def on_four_devices(tmp_path_factory) -> dict:
    """What `tests/training/four_devices.py` found."""
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    argv = [
        sys.executable,
        "-m",
        "tests.training.four_devices",
        str(tmp_path_factory.mktemp("run")),
        json.dumps(MESHES),
    ]
    done = subprocess.run(argv, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("mesh", [str(mesh) for mesh in MESHES])
def test_the_update_does_not_depend_on_the_mesh(on_four_devices, mesh):
    found = on_four_devices["meshes"][mesh]
    assert found["start"] == 0.0
    assert found["parameters"] < 1e-5
    assert found["optimizer"] < 1e-5
    assert found["metrics"] < 1e-5


@pytest.mark.parametrize(("mesh", "share"), [("(4, 1, 1)", 1.0), ("(2, 2, 1)", 0.5), ("(1, 2, 2)", 0.25)])
def test_parameters_and_optimizer_are_split(on_four_devices, mesh, share):
    # Vectors, the norms' scales and biases, stay whole on every device: 96 of 2,016 numbers.
    found = on_four_devices["meshes"][mesh]
    assert found["matrices_held"] == [share] * 4
    assert found["moments_held"] == [share] * 4


def test_rows_of_a_batch_are_split_over_data_and_fsdp(on_four_devices):
    rows = {mesh: found["rows_held"] for mesh, found in on_four_devices["meshes"].items()}
    assert rows == {"(4, 1, 1)": 2, "(2, 2, 1)": 2, "(1, 2, 2)": 4}


def test_a_checkpoint_goes_on_on_another_mesh(on_four_devices):
    assert on_four_devices["restored_on_another_mesh"] == 0.0
    assert on_four_devices["loaded_without_a_mesh"] == 0.0


def test_a_mesh_that_does_not_fit_the_devices_is_refused():
    config = base.get_config().mesh
    for changes in ({"fsdp": 2}, {"data": 2}, {"data": 3, "tensor": 5}):
        config.update({"data": -1, "fsdp": 1, "tensor": 1} | changes)
        with pytest.raises(UserError, match="mesh.data=.*their product must be that number"):
            make_mesh(config)
