"""The arrays that are in memory at once when a program needs most, from the order of its instructions."""

import dataclasses
from collections.abc import Sequence

from transformer.planning.hlo import Instruction, Program, Shape

ALIASES = {"bitcast", "tuple", "optimization-barrier", "add-dependency"}  # results that share their operands' memory


@dataclasses.dataclass(frozen=True)
class Buffer:
    """An array in main memory: the result of a kernel, or one of its results."""

    instruction: Instruction
    shape: Shape


@dataclasses.dataclass
class _Life:
    """The places of the first and last instruction of a computation that need a buffer."""

    buffer: Buffer
    start: int
    stop: int


def largest_together(program: Program) -> list[Buffer]:
    """Returns the temporary arrays that are alive when they take most memory, largest first.

    Arguments of the program and results, which take the place of donated arguments, are not among them. XLA may place
    them with gaps, so the sum is close to the memory of temporaries, but not equal.
    """
    return sorted(_peak(program, program.entry), key=lambda buffer: -buffer.shape.bytes)


def _peak(program: Program, name: str) -> list[Buffer]:
    instructions = list(program.computations[name].values())
    lives = _lives(instructions)
    nested = {
        place: _peak(program, each.called[0])
        for place, each in enumerate(instructions)
        if each.opcode in ("while", "call") and each.called
    }
    changes = [0] * (len(instructions) + 1)
    for life in lives:
        changes[life.start] += life.buffer.shape.bytes
        changes[life.stop + 1] -= life.buffer.shape.bytes
    best, most, alive = 0, -1, 0
    for place in range(len(instructions)):
        alive += changes[place]
        total = alive + sum(buffer.shape.bytes for buffer in nested.get(place, []))
        if total > most:
            best, most = place, total
    return [life.buffer for life in lives if life.start <= best <= life.stop] + nested.get(best, [])


def _lives(instructions: Sequence[Instruction]) -> list[_Life]:
    """Returns the lives of all buffers but those of parameters and of the computation's result."""
    lives: list[_Life] = []
    values: dict[str, list[list[_Life]]] = {}  # for each result of an instruction, the buffers it may be in
    for place, each in enumerate(instructions):
        operands = [values[name] for name in each.operands if name in values]
        for life in (life for operand in operands for leaf in operand for life in leaf):
            life.stop = place
        values[each.name] = _leaves(each, operands, place)
        lives += [life for leaf in values[each.name] for life in leaf if life.start == place]
    result = {id(life) for each in instructions if each.is_root for leaf in values[each.name] for life in leaf}
    return [life for life in lives if id(life) not in result]


def _leaves(each: Instruction, operands: Sequence[list[list[_Life]]], place: int) -> list[list[_Life]]:
    flat = [leaf for operand in operands for leaf in operand]
    if each.opcode in ALIASES:
        return flat
    if each.opcode == "get-tuple-element":
        index = each.integer(r"index=(\d+)")
        return [flat[index]] if index is not None and index < len(flat) else flat
    if each.opcode == "while":
        return flat
    if each.opcode in ("parameter", "constant") or each.opcode.endswith("-start"):
        return [[] for _ in each.shapes]
    return [[_Life(Buffer(each, shape), place, place)] if shape.memory_space == 0 else [] for shape in each.shapes]
