"""The memory of a device while a program runs, the arrays that take it, and messages about steps that do not fit."""

import dataclasses
import math
from collections.abc import Sequence

import jax
import numpy as np

from scripts.planning.devices import Target
from scripts.planning.hlo import Computation, Instruction, Program, Shape
from scripts.planning.roofline import TOP, describe
from transformer.config_types import Config
from transformer.training.memory import bytes_used
from transformer.training.state import TrainState

GIB = 2**30
PARTS = {"parameters": "parameters", "optimizer_state": "optimizer state", "ema_parameters": "averaged parameters"}
# Instructions whose results are in the memory of their operands. A loop updates its operand in place.
ALIASES = {"bitcast", "tuple", "optimization-barrier", "add-dependency", "while"}


@dataclasses.dataclass(frozen=True)
class Arrays:
    """Arrays of one name and shape that are in memory together: how many, and their bytes in all."""

    name: str
    shape: str
    count: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on a device while a step runs, by kind, with the largest arrays of all kinds."""

    used: int
    available: int
    state: dict[str, int]  # of the parts of the state of training
    temporaries: int
    largest_arrays: Sequence[Arrays]

    @property
    def fits(self) -> bool:
        return self.used <= self.available


def measure(program: Program, compiled: jax.stages.Compiled, state: TrainState, available: int) -> Memory:
    """Returns the memory of a compiled step from an abstract state."""
    analysis = compiled.memory_analysis()
    used = max(bytes_used(analysis), analysis.peak_memory_in_bytes)
    trees = {title: jax.tree.leaves(getattr(state, name)) for name, title in PARTS.items()}
    parts = {title: sum(map(_shard_bytes, leaves)) for title, leaves in trees.items() if leaves}
    arrays = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        shape = ",".join(map(str, leaf.sharding.shard_shape(leaf.shape)))
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        arrays.append(Arrays(name, f"{leaf.dtype}[{shape}]", 1, _shard_bytes(leaf)))
    groups: dict[tuple[str, str], list[int]] = {}
    for buffer in largest_together(program.entry):
        groups.setdefault((describe(buffer.instruction), str(buffer.shape)), []).append(buffer.shape.bytes)
    arrays += [Arrays(*key, len(sizes), sum(sizes)) for key, sizes in groups.items()]
    largest = sorted(arrays, key=lambda arrays: -arrays.bytes)[:TOP]
    return Memory(used, available, parts, used - sum(parts.values()), largest)


def _shard_bytes(leaf: jax.ShapeDtypeStruct) -> int:
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


@dataclasses.dataclass(eq=False)
class Buffer:
    """An array in main memory, a result of an instruction; `start` and `stop` are the first and last that need it."""

    instruction: Instruction
    shape: Shape
    start: int
    stop: int


def largest_together(computation: Computation) -> list[Buffer]:
    """Returns the temporary arrays that are alive when they take most memory, largest first.

    Arguments of the program and results, which take the place of donated arguments, are not among them. XLA may place
    them with gaps, so the sum is close to the memory of temporaries, but not equal.
    """
    buffers = _buffers(computation.instructions)
    nested = {
        place: largest_together(instruction.called[0])
        for place, instruction in enumerate(computation.instructions)
        if instruction.opcode in ("while", "call") and instruction.called
    }
    changes = np.zeros(len(computation.instructions) + 1, np.int64)
    for buffer in buffers:
        changes[buffer.start] += buffer.shape.bytes
        changes[buffer.stop + 1] -= buffer.shape.bytes
    needed = np.cumsum(changes)[:-1]
    for place, inner in nested.items():
        needed[place] += sum(buffer.shape.bytes for buffer in inner)
    most = int(np.argmax(needed))
    alive = [buffer for buffer in buffers if buffer.start <= most <= buffer.stop] + nested.get(most, [])
    return sorted(alive, key=lambda buffer: -buffer.shape.bytes)


def _buffers(instructions: Sequence[Instruction]) -> list[Buffer]:
    """Returns the buffers of a computation, but those of parameters and of its result."""
    buffers: list[Buffer] = []
    leaves: dict[Instruction, list[list[Buffer]]] = {}  # for each array of a result, the buffers that it may be in
    for place, instruction in enumerate(instructions):
        operands = [leaf for operand in instruction.operands for leaf in leaves[operand]]
        for buffer in (buffer for leaf in operands for buffer in leaf):
            buffer.stop = place
        leaves[instruction] = _leaves(instruction, operands, place)
        buffers += [buffer for leaf in leaves[instruction] for buffer in leaf if buffer.start == place]
    root = next(instruction for instruction in instructions if instruction.is_root)
    result = {buffer for leaf in leaves[root] for buffer in leaf}
    return [buffer for buffer in buffers if buffer not in result]


def _leaves(instruction: Instruction, operands: list[list[Buffer]], place: int) -> list[list[Buffer]]:
    if instruction.opcode in ALIASES:
        return operands
    if instruction.opcode == "get-tuple-element":
        index = int(instruction.attribute(r"\bindex=(\d+)"))
        return [operands[index]] if index < len(operands) else operands
    if instruction.opcode in ("parameter", "constant") or instruction.opcode.endswith("-start"):
        return [[] for _ in instruction.shapes]
    return [
        [Buffer(instruction, shape, place, place)] if shape.memory_space == 0 else [] for shape in instruction.shapes
    ]


def explain(config: Config, target: Target, shape: str, memory: Memory) -> str:
    """Returns the message for a step that needs more than a device has."""
    parts = [f"{name} {size / GIB:.1f} GiB" for name, size in memory.state.items()]
    parts.append(f"activations, gradients and other temporaries {memory.temporaries / GIB:.1f} GiB")
    most = memory.largest_arrays[0]
    largest = f"the largest array is {most.shape} of {most.name}" + (f", {most.count} times" if most.count > 1 else "")
    needs = f"needs {memory.used / GIB:.1f} of {memory.available / GIB:.1f} GiB per device"
    is_state = sum(memory.state.values()) > memory.temporaries
    return (
        f"--device={target.text}: a step of {shape} {needs}: {', '.join(parts)} ({largest}); {advice(config, is_state)}"
    )


def explain_compiler(config: Config, target: Target, shape: str, message: str) -> str:
    """Returns the message for a step that the compiler of TPUs rejects, from the first line of the error."""
    reason = message.splitlines()[0].removeprefix("RESOURCE_EXHAUSTED: ").removesuffix(".")
    return f"--device={target.text}: a step of {shape} does not fit ({reason}); {advice(config, False)}"


def advice(config: Config, is_state: bool) -> str:
    """Returns which keys reduce the memory of the state of training, or of a batch."""
    split = "raise config.mesh.fsdp (with more devices), which splits parameters and optimizer state"
    if is_state:
        return f"{split}, or use config.optimizer.name=adafactor or a smaller model"
    batch = f"lower config.batch.tokens={config.batch.tokens} and raise config.training.accumulation in return"
    return f"{batch}, lower config.data.max_length, or {split} as well as the batch"
