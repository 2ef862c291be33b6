"""Collective operations of a program, and the bytes that a device sends for each."""

import dataclasses
import math
import re

from transformer.planning.hlo import Computation, Instruction, Program

# Bytes that a device sends for each byte of a collective's operands, in a ring of n devices.
SENT = {
    "all-gather": lambda n: n - 1,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda n: 1,
    "collective-broadcast": lambda n: 1,
}


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective over some devices. `bytes` are those of its operands on a device, `wire_bytes` those it sends."""

    kind: str
    devices: int
    bytes: int
    wire_bytes: int


def is_collective(each: Instruction) -> bool:
    return each.opcode.removesuffix("-start") in SENT


def find_collective(program: Program, each: Instruction, computation: Computation) -> Collective | None:
    """Returns the collective that an instruction of the computation is, or that its fusion contains, as on TPUs."""
    if is_collective(each):
        operands = sum(shape.bytes for name in each.operands for shape in computation[name].shapes)
        return _collective(each.opcode.removesuffix("-start"), group_size(each), operands)
    called = program.computations[each.called[0]] if each.opcode == "fusion" and each.called else {}
    if not called or is_continuation(program, each):
        return None
    found = next(filter(None, (find_collective(program, inner, called) for inner in called.values())), None)
    # A TPU's reduce-scatter is a fusion of an all-reduce and a slice.
    if found and found.kind == "all-reduce" and "reduce-scatter" in f"{each.name} {each.called}".replace("_", "-"):
        return _collective("reduce-scatter", found.devices, found.bytes)
    return found


def is_continuation(program: Program, fusion: Instruction) -> bool:
    """Returns whether a fusion carries on, or ends, a collective that an earlier fusion of a TPU's program starts."""
    (name,) = fusion.called
    return name.startswith("async_collective_fusion") or has_target(program, fusion, "AsyncCollectiveDone")


def has_target(program: Program, each: Instruction, target: str) -> bool:
    """Returns whether an instruction, or one in its fusion, is a custom call of this target."""
    names = each.called if each.opcode == "fusion" else ()
    inside = [inner for name in names for inner in program.computations[name].values()]
    return any(inner.target == target for inner in (each, *inside))


def _collective(kind: str, devices: int, operands: int) -> Collective | None:
    """Returns the collective; None if its devices are one."""
    return Collective(kind, devices, operands, round(operands * SENT[kind](devices))) if devices > 1 else None


def group_size(each: Instruction) -> int:
    """Returns how many devices take part in a collective, from the three forms of `replica_groups`."""
    text = each.attributes
    if found := re.search(r"replica_groups=mesh\[([^\]]*)\] ?\{([^}]*)\}", text):
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", found[1])}
        return math.prod(sizes[name] for name in re.findall(r"'(\w+)'", found[2]))
    if found := re.search(r"replica_groups=\[\d+,(\d+)\]", text):
        return int(found[1])
    if found := re.search(r"replica_groups=\{\{([\d,]*)\}", text):
        return len(found[1].split(","))
    return 2 if "source_target_pairs" in text else 1
