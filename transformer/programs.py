"""Programs compiled ahead of time, for training and decoding, without those that XLA miscompiles on CPUs."""

import contextlib
import re
import threading
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from transformer.errors import UserError

ANY_DEVICE = NamedSharding(AbstractMesh((1,), ("device",), (AxisType.Auto,)), PartitionSpec())
FLAG = "--xla_cpu_experimental_ynn_fusion_type=-reduce"  # avoids the miscompilation
# Parts of a program's text.
_FUSION = re.compile(r'fusion\(.*calls=(%?[\w.\-]+),.*"__ynn_fusion"')
_DOT = re.compile(r" dot\(\S+ (%?[\w.\-]+)\)(.*)")
_DIMENSIONS = re.compile(r"rhs_(batch|contracting)_dims=\{([\d,]+)\}")
_OPERATION = re.compile(r'op_name="([^"]*)"')


class Programs:
    """The compiled programs of jitted functions, one for each function, shapes of its arguments, and device.

    The first argument, state or parameters, has the same shapes in all calls of a function and is no part of the key.
    Threads may compile different programs at the same time. A program accepts all arrays of its shapes and shardings,
    whereas the cache of `jax.jit` may miss for an equivalent sharding and compile in the middle of a run.
    """

    def __init__(self) -> None:
        # By device (None: placed as the arguments were), and by function and shapes.
        self.compiled: dict[tuple[jax.Device | None, tuple], jax.stages.Compiled] = {}
        self._lowered: dict[tuple, jax.stages.Lowered] = {}
        self._locks: dict[tuple, threading.Lock] = {}

    def run(self, function: Any, *arguments: Any) -> Any:
        """Calls the compiled function on arguments that are placed already."""
        return self.compile(function, *arguments)(*arguments)

    def compile(self, function: Any, *arguments: Any, device: jax.Device | None = None) -> jax.stages.Compiled:
        """Returns the jitted function compiled for arguments of these shapes. Arrays may be abstract.

        The program is for `device`, wherever the arguments are; without one, for the shardings of the arguments.
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


def compile_program(lowered: jax.stages.Lowered, **options: object) -> jax.stages.Compiled:
    """Compiles the program. Raises UserError if XLA computes one of its products wrongly on CPUs."""
    compiled = lowered.compile(**options)
    if jax.default_backend() == "cpu" and (operation := miscompiled_operation(compiled.as_text() or "")):
        raise UserError(
            f"{operation}: XLA computes this product wrongly on CPUs, since its right operand is broadcast and its "
            f"result reduced; multiply by the operand before its broadcast, or set XLA_FLAGS={FLAG}, which is slower"
        )
    return compiled


def miscompiled_operation(text: str) -> str | None:
    """Returns the name of a product that this program, as `as_text` prints it, computes wrongly, or None.

    XLA fuses the product with the reduction of its result and with the broadcast that makes its right operand, for
    YNNPACK. Then some operands are read with wrong strides or outside their memory. The kinds of broadcast below are
    those for which random products gave garbage, with JAX 0.10.2 and 0.12.0.1.
    """
    fused = set(_FUSION.findall(text))
    for computation in text.split("\n\n") if fused else ():
        if computation.partition(" ")[0] not in fused:
            continue
        for operand, attributes in _DOT.findall(computation):
            dimensions = {kind: set(numbers.split(",")) for kind, numbers in _DIMENSIONS.findall(attributes)}
            if _is_misread(operand, dimensions.get("batch", set()), dimensions["contracting"], computation):
                operation = _OPERATION.search(attributes)
                return operation[1] if operation else "a product"
    return None


def _is_misread(operand: str, batch: set[str], contracting: set[str], computation: str) -> bool:
    """Tells whether the operand is a broadcast that XLA misreads, from the dimensions along which it varies."""
    name = re.escape(operand)
    broadcast = re.search(rf"{name} = \w+\[([\d,]+)\]\S* broadcast\(.*?\), dimensions=\{{([\d,]*)\}}", computation)
    if broadcast is None:
        return False
    last = str(broadcast[1].count(","))
    varying = set(filter(None, broadcast[2].split(",")))
    varies_in_rows, varies_in_columns = not varying <= batch | contracting, bool(varying & contracting)
    if last in contracting:  # a transposed matrix: right if all its rows, or all its columns, are equal
        return varies_in_rows == varies_in_columns
    return not varies_in_rows
