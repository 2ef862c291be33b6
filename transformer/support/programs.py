"""Programs that are compiled ahead of time, for training and decoding.

Programs that XLA miscompiles on CPUs are refused.
"""

import contextlib
import re
import threading
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from transformer.support.errors import UserError

# A sharding without devices: one lowered program can be compiled for each device.
ANY_DEVICE = NamedSharding(AbstractMesh((1,), ("device",), (AxisType.Auto,)), PartitionSpec())
FLAG = "--xla_cpu_experimental_ynn_fusion_type=-reduce"  # avoids the miscompilation
# Patterns in the text of a compiled program.
_FUSION = re.compile(r'fusion\(.*calls=(%?[\w.\-]+),.*"__ynn_fusion"')
_DOT = re.compile(r" dot\(\S+ (%?[\w.\-]+)\)(.*)")
_DIMENSIONS = re.compile(r"rhs_(batch|contracting)_dims=\{([\d,]+)\}")
_OPERATION = re.compile(r'op_name="([^"]*)"')


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
        if jax.config.jax_disable_jit:
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
            waits = device.platform == "gpu" and jax.config.jax_compilation_cache_dir is not None
            with lock if waits else contextlib.nullcontext():
                compiled = compile_program(self._lowered[key], device_assignment=(device,))
        self.compiled[device, key] = compiled
        return compiled


def compile_program(lowered: jax.stages.Lowered, **options: object) -> jax.stages.Compiled:
    """Compiles the program.

    Raises UserError if XLA computes one of its matmuls wrongly on CPUs.
    """
    compiled = lowered.compile(**options)
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


def miscompiled_operation(text: str) -> str | None:
    """Returns the name of a matmul that a program computes wrongly, or None.

    `text` is the program as `as_text` prints it. For YNNPACK, XLA fuses the matmul with the
    reduction of its result and the broadcast of its right operand, which is then read with wrong
    strides. Random matmuls gave garbage for the broadcasts below, with JAX 0.10.2 and 0.12.0.1.
    """
    fused_names = set(_FUSION.findall(text))
    for computation in text.split("\n\n") if fused_names else ():
        if computation.partition(" ")[0] not in fused_names:
            continue
        for operand, attributes in _DOT.findall(computation):
            dimensions = {"batch": set()}
            for kind, numbers in _DIMENSIONS.findall(attributes):
                dimensions[kind] = set(numbers.split(","))
            if _is_misread(operand, dimensions["batch"], dimensions["contracting"], computation):
                operation = _OPERATION.search(attributes)
                return operation[1] if operation else "a product"
    return None


def _is_misread(operand: str, batch: set[str], contracting: set[str], computation: str) -> bool:
    """True if the operand is a broadcast that XLA misreads.

    This depends on the dimensions along which the operand varies.
    """
    name = re.escape(operand)
    broadcast = re.search(
        rf"{name} = \w+\[([\d,]+)\]\S* broadcast\(.*?\), dimensions=\{{([\d,]*)\}}", computation
    )
    if broadcast is None:
        return False
    last = str(broadcast[1].count(","))
    varying = set(filter(None, broadcast[2].split(",")))
    varies_in_rows = not varying <= batch | contracting
    varies_in_columns = bool(varying & contracting)
    # A transposed matrix is read correctly if all its rows, or all its columns, are equal.
    if last in contracting:
        return varies_in_rows == varies_in_columns
    return not varies_in_rows
