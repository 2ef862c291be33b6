"""One program on several devices: each device takes the next batch as soon as it has room for one."""

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from transformer.decoding.replicas import Replicas
from transformer.miscompilation import compile_program

LAUNCHED_AHEAD = 1  # batches that a device has received while it computes another one
ANY_DEVICE = NamedSharding(AbstractMesh((1,), ("device",), (AxisType.Auto,)), PartitionSpec())

Item = TypeVar("Item")
Shaped = jax.Array | np.ndarray | jax.ShapeDtypeStruct


class DeviceQueues:
    """A function of (parameters, arrays of a batch) that the devices apply to batches from one shared queue.

    A slow device does not delay the rest. Each shape is traced and lowered once, and compiled for each
    device that meets it.

    Attributes:
      programs: the compiled functions, by device and shape.
    """

    def __init__(self, function: Callable[..., Any], devices: Sequence[jax.Device], static_argnames: Sequence[str]):
        """`function` maps (parameters, *arrays, **static) to a tree of arrays."""
        self.devices = tuple(devices)
        self.function = jax.jit(function, static_argnames=static_argnames)
        self._lowered: dict[tuple, jax.stages.Lowered] = {}
        self.programs: dict[tuple, jax.stages.Compiled] = {}
        self._locks: dict[tuple, threading.Lock] = {}

    def map(
        self,
        replicas: Replicas,
        batches: Sequence[Item],
        arrays_of: Callable[[Item], Sequence[np.ndarray]],
        **static: int,
    ) -> Iterator[tuple[Item, Any]]:
        """Yields each batch with its result in NumPy, in the order in which devices finish them.

        The first device takes all work if there is one batch, so that single sentences compile nothing elsewhere.

        Args:
          arrays_of: returns the arrays of a batch, which the device's thread calls just before it needs them.
          static: the function's static arguments.
        """
        waiting = deque(batches)
        streams = [self._run(device, replicas, waiting, arrays_of, static) for device in self.devices[: len(waiting)]]
        return merge(streams)

    def program(
        self, device: jax.Device, parameters: tuple[dict, ...], arrays: Sequence[Shaped], **static: int
    ) -> jax.stages.Compiled:
        """Returns the function compiled for these shapes. Arrays may be abstract; several threads may call this."""
        shape = (*(array.shape for array in arrays), *static.items())
        if (device, shape) in self.programs:
            return self.programs[device, shape]
        self.lower(parameters, arrays, **static)
        lock = self._locks[shape]
        with lock if _shares_cache(device) else contextlib.nullcontext():
            self.programs[device, shape] = compile_program(self._lowered[shape], device_assignment=(device,))
        return self.programs[device, shape]

    def lower(self, parameters: tuple[dict, ...], arrays: Sequence[Shaped], **static: int) -> None:
        """Traces and lowers the function for these shapes, unless that was done. Arrays may be abstract."""
        shape = (*(array.shape for array in arrays), *static.items())
        with self._locks.setdefault(shape, threading.Lock()):
            if shape not in self._lowered:
                self._lowered[shape] = self._lower(parameters, arrays, static)

    def _run(
        self,
        device: jax.Device,
        replicas: Replicas,
        waiting: deque[Item],
        arrays_of: Callable[[Item], Sequence[np.ndarray]],
        static: dict[str, int],
    ) -> Iterator[tuple[Item, Any]]:
        """Yields the results of the batches that this device takes from `waiting`."""
        parameters, launched = replicas.on(device), deque()
        while True:
            try:
                batch = waiting.popleft()
            except IndexError:
                break
            arrays = jax.device_put(tuple(arrays_of(batch)), device)
            launched.append((batch, self.program(device, parameters, arrays, **static)(parameters, *arrays)))
            if len(launched) > LAUNCHED_AHEAD:
                first, result = launched.popleft()
                yield first, jax.device_get(result)
        for batch, result in launched:
            yield batch, jax.device_get(result)

    def _lower(
        self, parameters: tuple[dict, ...], arrays: Sequence[Shaped], static: dict[str, int]
    ) -> jax.stages.Lowered:
        abstract = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=ANY_DEVICE), (parameters, *arrays)
        )
        traced = self.function.trace(*abstract, **static)
        return traced.lower(lowering_platforms=(jax.export.default_export_platform(),))


def _shares_cache(device: jax.Device) -> bool:
    """Tells whether JAX's compilation cache gives this device what it has compiled for another one of its kind."""
    return device.platform == "gpu" and jax.config.jax_compilation_cache_dir is not None


def merge(streams: Sequence[Iterator[Item]]) -> Iterator[Item]:
    """Yields the items of all streams as they come. Each stream has a thread; a single one needs none.

    An exception in a stream is raised here. It, or closing this iterator, ends the other streams after their next item.
    """
    if len(streams) <= 1:
        for stream in streams:
            yield from stream
        return
    items, stopped = queue.SimpleQueue(), threading.Event()

    def read(stream: Iterator[Item]) -> None:
        try:
            for item in stream:
                if stopped.is_set():
                    return
                items.put((item, None))
            items.put(None)
        except BaseException as error:
            items.put((None, error))

    with ThreadPoolExecutor(len(streams)) as pool:
        try:
            for stream in streams:
                pool.submit(read, stream)
            running = len(streams)
            while running:
                received = items.get()
                if received is None:
                    running -= 1
                    continue
                item, error = received
                if error is not None:
                    raise error
                yield item
        finally:
            stopped.set()
