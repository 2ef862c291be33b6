"""The kernels that a program launches: bytes, FLOPs and collectives of each."""

import dataclasses
import re
from collections.abc import Iterator

from transformer.planning.collectives import Collective, find_collective, has_target
from transformer.planning.hlo import Instruction, Program
from transformer.planning.products import Flops, flops
from transformer.planning.traffic import bytes_moved

FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"}
FREE |= {"optimization-barrier", "add-dependency"}
FREE_TARGETS = ("ConcatBitcast", "AssumeGatherIndicesInBound")  # of custom calls on TPUs


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel, launched `times` a step; bytes in main memory and FLOPs of products are those of one launch.

    Attributes:
      is_async: a copy or collective that runs beside other kernels.
      computation: the one that the instruction belongs to.
    """

    instruction: Instruction
    computation: str
    times: int
    bytes: int
    flops: Flops
    collective: Collective | None
    is_async: bool


def kernels(program: Program) -> list[Kernel]:
    """Returns the kernels of the program. Bodies of loops count as often as they run, if that is known."""
    return list(_walk(program, program.entry, 1))


def _walk(program: Program, name: str, times: int) -> Iterator[Kernel]:
    computation = program.computations[name]
    for each in computation.values():
        if each.opcode == "while":
            yield from _walk(program, each.called[0], times * _trips(program, each))
        elif each.opcode == "conditional":
            branches = [list(_walk(program, branch, times)) for branch in each.called]
            yield from max(branches, key=lambda branch: sum(kernel.bytes for kernel in branch), default=[])
        elif each.opcode in ("call", "async-start"):
            for called in each.called:
                yield from _walk(program, called, times)
        elif not _is_free(program, each):
            yield _kernel(program, each, name, times)


def _trips(program: Program, loop: Instruction) -> int:
    """Returns how often the body of a loop runs; 1 if the program does not tell."""
    known = loop.integer(r'known_trip_count":\{"n":"(\d+)"')
    # Programs for TPUs lack that field; there the condition of a scan compares its counter with a constant.
    condition = re.search(r"condition=%?([\w.\-]+)", loop.attributes)[1]
    constants = [each.number for each in program.computations[condition].values() if each.opcode == "constant"]
    return known or (constants[0] if len(constants) == 1 else None) or 1


def _is_free(program: Program, each: Instruction) -> bool:
    if each.opcode in FREE or each.opcode.endswith(("-done", "-update")):
        return True
    if each.opcode == "fusion":
        return has_target(program, each, "AsyncCollectiveDone")
    # The scalar unit of a TPU works on scalar memory, beside the other units.
    is_scalar = all(shape.memory_space > 1 for shape in each.shapes)
    return is_scalar or any(has_target(program, each, target) for target in FREE_TARGETS)


def _kernel(program: Program, each: Instruction, name: str, times: int) -> Kernel:
    computation = program.computations[name]
    return Kernel(
        instruction=each,
        computation=name,
        times=times,
        bytes=bytes_moved(program, each, computation),
        flops=flops(program, each, computation),
        collective=find_collective(program, each, computation),
        is_async=each.opcode.endswith("-start") or has_target(program, each, "AsyncCollectiveStart"),
    )
