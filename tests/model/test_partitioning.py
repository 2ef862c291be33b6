"""The platform that a program is traced for, and what depends on it."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh

from transformer.distributed.mesh import AXES, AXIS_TYPES
from transformer.model.partitioning import materialize, target_platform

X = jnp.ones((2, 3, 4))


def mesh_of(platform: str) -> AbstractMesh:
    """Returns a mesh of one device that is not present."""
    device = AbstractDevice(device_kind="any", num_cores=None, platform=platform)
    return AbstractMesh((1, 1, 1), AXES, AXIS_TYPES, abstract_device=device)


def test_without_a_mesh_the_platform_is_that_of_jax():
    assert target_platform() == jax.default_backend()


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_the_residual_stream_has_a_barrier_on_cpus_only(platform):
    with jax.sharding.use_abstract_mesh(mesh_of(platform)):
        assert target_platform() == platform
        program = str(jax.make_jaxpr(jax.grad(lambda x: jnp.sin(materialize(x)).sum()))(X))
    # One of x and one of its gradient.
    assert program.count("optimization_barrier") == (2 if platform == "cpu" else 0)
