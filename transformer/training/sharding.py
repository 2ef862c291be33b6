"""Where arrays live on a device mesh: one rule a kind of parameter, the batch over its rows."""

import jax
import ml_collections
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from transformer.errors import UserError

BATCH = P(("data", "fsdp"))
# Tensor parallelism splits what comes out of the first product of a sub-layer and goes into its second, so that one
# sum over devices a sub-layer is enough (Megatron-LM); FSDP splits the other side.
RULES = {
    "query": P("fsdp", "tensor"),
    "key": P("fsdp", "tensor"),
    "value": P("fsdp", "tensor"),
    "output": P("tensor", "fsdp"),
    "inner": P("fsdp", "tensor"),
    "gate": P("fsdp", "tensor"),
    "outer": P("tensor", "fsdp"),
    "embedding": P("tensor", "fsdp"),
    "projection": P("fsdp", "tensor"),
}


def make_mesh(config: ml_collections.ConfigDict | ml_collections.FrozenConfigDict) -> Mesh:
    """The mesh that the group `config.mesh` describes, over all devices. Raises UserError if it does not fit them."""
    count = jax.device_count()
    inner = config.fsdp * config.tensor
    data = count // inner if config.data == -1 else config.data
    if data * inner != count:
        raise UserError(
            f"mesh.data={config.data} mesh.fsdp={config.fsdp} mesh.tensor={config.tensor} does not use the {count} "
            "device(s) there are: their product must be that number (mesh.data=-1 takes what the other two leave)"
        )
    return Mesh(np.reshape(jax.devices(), (data, config.fsdp, config.tensor)), ("data", "fsdp", "tensor"))


def tree_shardings(mesh: Mesh, tree):
    """The sharding of every leaf of parameters, or of an optimizer's state, which names its leaves alike.

    A dimension that the mesh does not divide stays whole; vectors and scalars are on every device.
    """

    def place(path, leaf) -> NamedSharding:
        names = [str(getattr(key, "key", getattr(key, "name", ""))) for key in path]
        rule = next((RULES[name] for name in reversed(names) if name in RULES), P())
        if len(leaf.shape) != 2:
            return NamedSharding(mesh, P())
        fits = [
            axis if axis is not None and size % mesh.shape[axis] == 0 else None
            for axis, size in zip((*rule, None, None), leaf.shape, strict=False)
        ]
        return NamedSharding(mesh, P(*fits))

    return jax.tree_util.tree_map_with_path(place, tree)
