"""Programs that are compiled ahead of time, for training and decoding.

Programs that XLA miscompiles on CPUs are refused.
"""

import contextlib
import threading
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from transformer.support.errors import UserError
from transformer.support.miscompilation import FLAG, miscompiled_operation

# A sharding without devices: one lowered program can be compiled for each device.
ANY_DEVICE = NamedSharding(AbstractMesh((1,), ("device",), (AxisType.Auto,)), PartitionSpec())


class Programs:
    """The compiled programs of jitted functions.

    There is one for each function, shapes of its arguments, and device. The first argument, state
    or parameters, has the same shapes in all calls of a function and is not part of the key. The
    cache of `jax.jit` may miss for an equivalent sharding, and compile in the middle of a run; this
    one does not.
    """

    def __init__(self) -> None:
        # By device, and by function and shapes. Device None means the shardings of the arguments.
        self.compiled: dict[tuple[jax.Device | None, tuple], jax.stages.Compiled] = {}
        self._lowered: dict[tuple, jax.stages.Lowered] = {}
        self._locks: dict[tuple, threading.Lock] = {}

    def run(self, function: Any, *arguments: Any) -> Any:
        """Calls the compiled function on arguments that are placed already."""
        return self.compile(function, *arguments)(*arguments)

    def compile(
        self, function: Any, *arguments: Any, device: jax.Device | None = None
    ) -> jax.stages.Compiled:
        """Returns the function compiled for these shapes.

        It runs on `device`, or with the shardings of the arguments. With JAX_DISABLE_JIT=1, for
        debugging, it is the function itself.
        """
        if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            return function
        leaves, structure = jax.tree.flatten(arguments[1:])
        key = (function, structure, *map(np.shape, leaves))
        if (device, key) in self.compiled:
            return self.compiled[device, key]
        if device is None:
            compiled = compile_program(function.lower(*arguments))
        else:
            # One lowering serves all devices.
            lock = self._locks.setdefault(key, threading.Lock())
            with lock:
                if key not in self._lowered:
                    shapes = jax.tree.map(
                        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=ANY_DEVICE),
                        arguments,
                    )
                    platforms = (jax.export.default_export_platform(),)
                    self._lowered[key] = function.trace(*shapes).lower(lowering_platforms=platforms)
            # GPUs compile one after the other, so that the first one's program is in JAX's cache.
            cache_dir = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
            waits = device.platform == "gpu" and cache_dir is not None
            with lock if waits else contextlib.nullcontext():
                compiled = compile_program(self._lowered[key], device_assignment=(device,))
        self.compiled[device, key] = compiled
        return compiled


def compile_program(
    lowered: jax.stages.Lowered, device_assignment: tuple[jax.Device, ...] | None = None
) -> jax.stages.Compiled:
    """Compiles the program, by default for the devices of its shardings.

    Raises UserError if XLA computes one of its matmuls wrongly on CPUs.
    """
    compiled = lowered.compile(device_assignment=device_assignment)
    if jax.default_backend() != "cpu":
        return compiled
    operation = miscompiled_operation(compiled.as_text() or "")
    if operation:
        raise UserError(
            f"{operation}: XLA computes this matmul wrongly on CPUs, since its right operand is "
            "broadcast and its result reduced; multiply by the operand before its broadcast, or "
            f"set XLA_FLAGS={FLAG}, which is slower"
        )
    return compiled
