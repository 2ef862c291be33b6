"""The bytes of main memory that a kernel reads and writes."""

from collections.abc import Sequence

from transformer.planning.collectives import is_collective
from transformer.planning.hlo import Computation, Instruction, Program, Shape

VIEWS = {"slice", "dynamic-slice", "gather"}  # read only the part of their first operand that they return


def bytes_moved(program: Program, each: Instruction, computation: Computation) -> int:
    """Returns the bytes that an instruction of the computation reads and writes, each operand and result once.

    Of an operand that is only sliced, the slices count; of a result that is updated in place, the update.
    """
    operands = [computation[name] for name in each.operands]
    if each.opcode == "fusion":
        called = program.computations[each.called[0]]
        parameters = {inner.number: inner for inner in called.values() if inner.opcode == "parameter"}
        read = [_read_in(called, parameters[number]) for number in range(len(operands))]
        written = _written_by(called, each)
    else:
        read = [_read(each, number) for number in range(len(operands))]
        written = _written(each, computation)
    total = written
    for operand, part in zip(operands, read, strict=True):
        whole = in_memory(operand.shapes)
        total += whole if part is None else min(whole, part)
    return total


def in_memory(shapes: Sequence[Shape]) -> int:
    """Returns the bytes of these arrays that are in main memory."""
    return sum(shape.bytes for shape in shapes if shape.memory_space == 0)


def _read(user: Instruction, number: int) -> int | None:
    """Returns the bytes of operand `number` that an instruction reads; None: all."""
    if number == 0 and user.opcode in VIEWS:
        return sum(shape.bytes for shape in user.shapes)
    if number == 0 and user.opcode == "slice-start":  # its result repeats the operand, then has the slice
        return user.shapes[1].bytes
    return 0 if number == 0 and user.opcode == "dynamic-update-slice" else None


def _read_in(called: Computation, value: Instruction) -> int | None:
    """Returns the bytes of a value that a fusion reads; None: all."""
    total = 0
    for user in called.values():
        for number in (i for i, name in enumerate(user.operands) if name == value.name):
            if user.opcode == "tuple" or is_collective(user):
                continue  # passed on
            part = _read_in(called, user) if user.opcode == "bitcast" else _read(user, number)
            if part is None:
                return None
            total += part
    return total


def _written(each: Instruction, computation: Computation) -> int:
    if each.opcode == "dynamic-update-slice":
        return in_memory(computation[each.operands[1]].shapes)
    if each.target.startswith("__cublas$"):
        return in_memory(each.shapes[:1])  # the other result is workspace
    total = in_memory(each.shapes)
    if each.opcode.endswith("-start"):  # the result repeats the operands
        total = max(total - sum(in_memory(computation[name].shapes) for name in each.operands), 0)
    return total


def _written_by(called: Computation, fusion: Instruction) -> int:
    """Returns the bytes that a fusion writes, not what it passes on: its parameters, and the results of collectives."""
    root = next(each for each in called.values() if each.is_root)
    results = [called[name] for name in root.operands] if root.opcode == "tuple" else [root]
    if len(results) != len(fusion.shapes):
        return in_memory(fusion.shapes)
    total = 0
    for shape, result in zip(fusion.shapes, results, strict=True):
        while result.opcode == "bitcast":
            result = called[result.operands[0]]
        if result.opcode == "dynamic-update-slice":
            total += in_memory(called[result.operands[1]].shapes)
        elif result.opcode != "parameter" and not (is_collective(result) and root.opcode == "tuple"):
            total += in_memory([shape])
    return total
