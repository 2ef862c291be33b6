"""Programs compiled ahead of time, for training and decoding."""

import contextlib
import threading
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from transformer.miscompilation import compile_program

ANY_DEVICE = NamedSharding(AbstractMesh((1,), ("device",), (AxisType.Auto,)), PartitionSpec())


class Programs:
    """The compiled programs of jitted functions, one for each function, shapes of its arguments, and device.

    The first argument, state or parameters, has the same shapes in all calls of a function and is no part of the key.
    Threads may compile different programs at the same time. A program accepts all arrays of its shapes and shardings,
    whereas the cache of `jax.jit` may miss for an equivalent sharding and compile in the middle of a run.

    Attributes:
      compiled: the programs, by device (None: placed as the arguments were) and by function and shapes.
    """

    def __init__(self) -> None:
        self.compiled: dict[tuple[jax.Device | None, tuple], jax.stages.Compiled] = {}
        self._lowered: dict[tuple, jax.stages.Lowered] = {}
        self._locks: dict[tuple, threading.Lock] = {}

    def run(self, function: Any, *arguments: Any) -> Any:
        """Calls the compiled function on arguments that are placed already."""
        return self.compile(function, *arguments)(*arguments)

    def compile(self, function: Any, *arguments: Any, device: jax.Device | None = None) -> jax.stages.Compiled:
        """Returns the jitted function compiled for arguments of these shapes. Arrays may be abstract.

        Args:
          device: compile for this device, wherever the arguments are. None keeps their shardings.
        """
        key = _key(function, arguments)
        if (device, key) not in self.compiled:
            lowered = function.lower(*arguments) if device is None else self.lower(function, *arguments)
            options = {} if device is None else {"device_assignment": (device,)}
            with self._locks[key] if _shares_cache(device) else contextlib.nullcontext():
                self.compiled[device, key] = compile_program(lowered, **options)
        return self.compiled[device, key]

    def lower(self, function: Any, *arguments: Any) -> jax.stages.Lowered:
        """Traces and lowers the function once for all devices. `compile` does so, unless it was done before."""
        key = _key(function, arguments)
        with self._locks.setdefault(key, threading.Lock()):
            if key not in self._lowered:
                abstract = jax.tree.map(_on_any_device, arguments)
                platforms = (jax.export.default_export_platform(),)
                self._lowered[key] = function.trace(*abstract).lower(lowering_platforms=platforms)
            return self._lowered[key]


def _key(function: Any, arguments: tuple) -> tuple:
    leaves, structure = jax.tree.flatten(arguments[1:])
    return function, structure, *map(np.shape, leaves)


def _on_any_device(array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=ANY_DEVICE)


def _shares_cache(device: jax.Device | None) -> bool:
    """Tells whether JAX's compilation cache gives this device what it has compiled for another one of its kind."""
    return device is not None and device.platform == "gpu" and jax.config.jax_compilation_cache_dir is not None
