"""The memory of a device while a program runs, and the arrays that take it."""

import dataclasses
from collections.abc import Iterable, Sequence

import jax

from transformer.planning.hlo import Program
from transformer.planning.liveness import largest_together
from transformer.planning.names import describe

GIB = 2**30
PARTS = {"parameters": "parameters", "optimizer_state": "optimizer state", "ema_parameters": "averaged parameters"}


@dataclasses.dataclass(frozen=True)
class Arrays:
    """Arrays of one name and shape that are in memory together: how many, and their bytes in all."""

    name: str
    shape: str
    count: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on a device while a step runs, by kind. `largest` lists arrays of all kinds."""

    used: int
    available: int
    state: dict[str, int]  # of the parts of the state of training
    temporaries: int
    largest: tuple[Arrays, ...]

    @property
    def fits(self) -> bool:
        return self.used <= self.available


def bytes_used(memory) -> int:
    """Returns the bytes on a device while a program runs. Donated arguments share the memory of outputs."""
    used = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    return used - memory.alias_size_in_bytes


def measure(program: Program, compiled: jax.stages.Compiled, state, available: int) -> Memory:
    """Returns the memory of a compiled step from an abstract state."""
    analysis = compiled.memory_analysis()
    used = max(bytes_used(analysis), analysis.peak_memory_in_bytes)
    parts = state_bytes(state)
    arrays = [*state_arrays(state), *temporaries(program)]
    largest = tuple(sorted(arrays, key=lambda each: -each.bytes))
    return Memory(used, available, parts, used - sum(parts.values()), largest)


def state_bytes(state) -> dict[str, int]:
    """Returns the bytes on a device of the parts of a state of training."""
    trees = {title: getattr(state, name) for name, title in PARTS.items()}
    sizes = {title: sum(map(_shard_bytes, jax.tree.leaves(tree))) for title, tree in trees.items()}
    return {title: size for title, size in sizes.items() if size}


def state_arrays(state) -> Iterable[Arrays]:
    """Yields the arrays of a state, the part of them that is on one device."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        keys = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", "")))) for key in path]
        shape = leaf.sharding.shard_shape(leaf.shape)
        yield Arrays(".".join(keys), f"{leaf.dtype}[{','.join(map(str, shape))}]", 1, _shard_bytes(leaf))


def temporaries(program: Program) -> Sequence[Arrays]:
    """Returns the arrays that are alive when a program's temporaries take most memory, those of one name together."""
    groups: dict[tuple[str, str], list[int]] = {}
    for buffer in largest_together(program):
        key = (describe(program, buffer.instruction), str(buffer.shape))
        groups.setdefault(key, []).append(buffer.shape.bytes)
    return [Arrays(*key, len(sizes), sum(sizes)) for key, sizes in groups.items()]


def _shard_bytes(leaf: jax.ShapeDtypeStruct) -> int:
    size = leaf.dtype.itemsize
    for dim in leaf.sharding.shard_shape(leaf.shape):
        size *= dim
    return size
