"""Compiled programs by the shape of a batch."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Sharding

from transformer.data.batches.epoch_plan import Bucket
from transformer.miscompilation import compile_program

Batch = dict[str, Any]  # the arrays that the loader produces, by name: on devices, abstract, or whole in NumPy


class Programs:
    """The compiled programs of jitted functions, one for each function and shape of its batch.

    Threads may compile different shapes at the same time. A program accepts all arrays of its shapes and shardings,
    whereas the cache of `jax.jit` may miss for an equivalent sharding and compile in the middle of a run.
    """

    def __init__(self) -> None:
        self._programs: dict[tuple, jax.stages.Compiled] = {}

    def compile(self, function: Any, *arguments: Any) -> jax.stages.Compiled:
        """Returns the jitted function compiled for arguments of these shapes. Arrays may be abstract.

        Programs of a function differ only by the shapes of the batch: the first dictionary after the first argument,
        if there is one. The first argument, state or parameters, has the same shapes in all calls.
        """
        batch = next((argument for argument in arguments[1:] if isinstance(argument, dict)), {})
        key = function, *((name, array.shape) for name, array in sorted(batch.items()))
        if key not in self._programs:
            self._programs[key] = compile_program(function.lower(*arguments))
        return self._programs[key]

    def run(self, function: Any, *arguments: Any) -> Any:
        """Calls the compiled function."""
        return self.compile(function, *arguments)(*arguments)


def abstract_batch(bucket: Bucket, is_packed: bool, sharding: Sharding) -> Batch:
    """Returns the shapes of the arrays of a batch from this bucket, with their sharding."""
    source, target = bucket.source_length, bucket.target_length
    sides = {"source": source, "target_input": target, "target_output": target}
    if is_packed:
        for side, length in (("source", source), ("target", target)):
            sides |= {f"{side}_segments": length, f"{side}_positions": length}
    sides = {name: length for name, length in sides.items() if length}
    return {
        name: jax.ShapeDtypeStruct((bucket.rows, length), jnp.int32, sharding=sharding)
        for name, length in sides.items()
    }
