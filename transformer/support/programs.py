"""Programs compiled ahead of time, for training and decoding, without those that XLA miscompiles on
CPUs.
"""

import contextlib
import re
import threading
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from transformer.support.errors import UserError

ANY_DEVICE = NamedSharding(AbstractMesh((1,), ("device",), (AxisType.Auto,)), PartitionSpec())
FLAG = "--xla_cpu_experimental_ynn_fusion_type=-reduce"  # avoids the miscompilation
_FUSION = re.compile(r'fusion\(.*calls=(%?[\w.\-]+),.*"__ynn_fusion"')
_DOT = re.compile(r" dot\(\S+ (%?[\w.\-]+)\)(.*)")
_DIMENSIONS = re.compile(r"rhs_(batch|contracting)_dims=\{([\d,]+)\}")
_OPERATION = re.compile(r'op_name="([^"]*)"')


class Programs:
    """The compiled programs of jitted functions, one for each function, shapes of its arguments,
    and device.

    The first argument, state or parameters, has the same shapes in all calls of a function and is
    no part of the key. The cache of `jax.jit` may miss for an equivalent sharding, and compile in
    the middle of a run; this one does not.
    """

    def __init__(self) -> None:
        # By device (None: the shardings of the arguments), and by function and shapes.
        self.compiled: dict[tuple[jax.Device | None, tuple], jax.stages.Compiled] = {}
        self._lowered: dict[tuple, jax.stages.Lowered] = {}
        self._locks: dict[tuple, threading.Lock] = {}

    def run(self, function: Any, *arguments: Any) -> Any:
        """Calls the compiled function on arguments that are placed already."""
        return self.compile(function, *arguments)(*arguments)

    def compile(
        self, function: Any, *arguments: Any, device: jax.Device | None = None
    ) -> jax.stages.Compiled:
        """Returns the function compiled for these shapes, and for `device` or the shardings of the
        arguments.

        With JAX_DISABLE_JIT=1, for debugging, it is the function itself.
        """
        if jax.config.jax_disable_jit:
            return function
        leaves, structure = jax.tree.flatten(arguments[1:])
        key = function, structure, *map(np.shape, leaves)
        if (device, key) in self.compiled:
            return self.compiled[device, key]
        if device is None:
            compiled = compile_program(function.lower(*arguments))
        else:
            lock = self._locks.setdefault(key, threading.Lock())
            with lock:  # one lowering serves all devices
                if key not in self._lowered:
                    shapes = jax.tree.map(
                        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=ANY_DEVICE),
                        arguments,
                    )
                    platforms = (jax.export.default_export_platform(),)
                    self._lowered[key] = function.trace(*shapes).lower(lowering_platforms=platforms)
            # JAX's compilation cache gives a GPU what it has compiled for another one.
            waits = device.platform == "gpu" and jax.config.jax_compilation_cache_dir is not None
            with lock if waits else contextlib.nullcontext():
                compiled = compile_program(self._lowered[key], device_assignment=(device,))
        self.compiled[device, key] = compiled
        return compiled


def compile_program(lowered: jax.stages.Lowered, **options: object) -> jax.stages.Compiled:
    """Compiles the program.

    Raises UserError if XLA computes one of its products wrongly on CPUs.
    """
    compiled = lowered.compile(**options)
    if jax.default_backend() == "cpu" and (
        operation := miscompiled_operation(compiled.as_text() or "")
    ):
        raise UserError(
            f"{operation}: XLA computes this product wrongly on CPUs, since its right operand is broadcast and its "
            f"result reduced; multiply by the operand before its broadcast, or set XLA_FLAGS={FLAG}, which is slower"
        )
    return compiled


def miscompiled_operation(text: str) -> str | None:
    """Returns the name of a product that this program, as `as_text` prints it, computes wrongly, or
    None.

    For YNNPACK, XLA fuses the product with the reduction of its result and the broadcast of its
    right operand, which is then read with wrong strides. Random products gave garbage for the
    broadcasts below, with JAX 0.10.2 and 0.12.0.1.
    """
    fused = set(_FUSION.findall(text))
    for computation in text.split("\n\n") if fused else ():
        if computation.partition(" ")[0] not in fused:
            continue
        for operand, attributes in _DOT.findall(computation):
            dimensions = {
                kind: set(numbers.split(",")) for kind, numbers in _DIMENSIONS.findall(attributes)
            }
            if _is_misread(
                operand, dimensions.get("batch", set()), dimensions["contracting"], computation
            ):
                operation = _OPERATION.search(attributes)
                return operation[1] if operation else "a product"
    return None


def _is_misread(operand: str, batch: set[str], contracting: set[str], computation: str) -> bool:
    """Tells whether the operand is a broadcast that XLA misreads, from the dimensions along which
    it varies.
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
    # a transposed matrix: right if all its rows, or all its columns, are equal
    if last in contracting:
        return varies_in_rows == varies_in_columns
    return not varies_in_rows
