"""The parameters of an ensemble on each device that decodes, with weights in the dtype of their products."""

import functools
from collections.abc import Sequence

import jax
import numpy as np
from flax import nnx
from jax.sharding import Sharding

from transformer.model.kernels import decoding_weight, product_dtype
from transformer.model.linear import Linear


class Replicas:
    """One copy of an ensemble's parameters for each device, made when the device first needs it.

    The kernels of linear maps are those of `decoding_weight`, in the dtype of their products. All other parameters stay
    float32: biases, the norms' scales and embeddings take part in sums and products in float32 first.
    """

    def __init__(self, graphs: Sequence[nnx.GraphDef], parameters: Sequence[dict], placement: jax.Device | Sharding):
        """Converts the parameters and places them.

        Args:
          parameters: of each model, as `nnx.to_pure_dict` returns them; in NumPy, or sharded over a mesh.
          placement: the first device that needs them, or a sharding that replicates them over a mesh. With several
            processes the second is a collective: all of them must construct the object.
        """
        # NumPy converts its own arrays, which compiles nothing.
        is_on_devices = isinstance(jax.tree.leaves(parameters)[0], jax.Array)
        convert = _convert_on_devices if is_on_devices else convert_kernels
        self._placed = jax.device_put(tuple(map(convert, graphs, parameters)), placement)
        self._copies: dict[jax.Device, tuple[dict, ...]] = {}

    @staticmethod
    def abstract(graphs: Sequence[nnx.GraphDef], parameters: Sequence[dict]) -> tuple[dict, ...]:
        """Returns the shapes and dtypes of a copy; the parameters may be abstract."""
        pairs = zip(graphs, parameters, strict=True)
        return tuple(jax.eval_shape(functools.partial(convert_kernels, graph), tree) for graph, tree in pairs)

    def on(self, device: jax.Device) -> tuple[dict, ...]:
        """Returns the parameters of each model on a local device."""
        if device not in self._copies:
            self._copies[device] = jax.tree.map(lambda array: _copy_on(array, device), self._placed)
        return self._copies[device]


def convert_kernels(graph: nnx.GraphDef, parameters: dict) -> dict:
    """Returns the parameters of a model with the kernel of each linear map as `decoding_weight` returns it."""
    model = nnx.merge(graph, nnx.State(parameters))
    for _, module in nnx.iter_modules(model):
        if isinstance(module, Linear):
            with np.errstate(invalid="ignore"):  # a diverged model may have NaN
                kernel = decoding_weight(module.kernel[...], product_dtype(module.dtype))
            module.kernel = nnx.Param(kernel)
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))


_convert_on_devices = jax.jit(convert_kernels, static_argnums=0)


def _copy_on(array: jax.Array, device: jax.Device) -> jax.Array:
    shards = {shard.device: shard.data for shard in array.addressable_shards}
    return shards[device] if device in shards else jax.device_put(next(iter(shards.values())), device)
