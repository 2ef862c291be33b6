"""Meshes of the tests."""

import jax
import numpy as np
from jax.sharding import Mesh

from transformer.distributed.mesh import AXES, AXIS_TYPES


def one_device() -> Mesh:
    """Returns a mesh of the first device of this process."""
    return Mesh(np.reshape(jax.local_devices()[:1], (1, 1, 1)), AXES, AXIS_TYPES)
