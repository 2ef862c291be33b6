"""The roofline of a program: a lower bound on its time on a device (Williams et al. 2009).

The bound is a sum over kernels. Each kernel takes at least the time of its bytes in main memory,
and at least the time of its FLOPs.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from scripts.planning.devices import Target
from scripts.planning.hlo import Computation, Instruction, Program
from scripts.planning.instructions import (
    Collective,
    Flops,
    bytes_moved,
    find_collective,
    flops,
    has_target,
)

# Operations that launch nothing.
FREE = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "after-all",
    "partition-id",
    "replica-id",
    "optimization-barrier",
    "add-dependency",
}
FREE_TARGETS = ("ConcatBitcast", "AssumeGatherIndicesInBound")  # custom calls on TPUs
# Number of kernels in a report.
TOP = 10
GPU_LAUNCH_SECONDS = 2.5e-6  # the least time of a launch
STEP = "CompiledStep."
# Modules around every sublayer, which names leave out.
WRAPPERS = {"Layer", "SublayerConnection"}


class Kernel(NamedTuple):
    """A kernel that runs `times` in a step. `bytes` and `flops` are the work of one launch."""

    instruction: Instruction
    times: int
    bytes: int
    flops: Flops
    collective: Collective | None
    is_async: bool  # true for copies and collectives that run beside other kernels


def describe(instruction: Instruction) -> str:
    """Returns modules and operation: "Decoder/FeedForward/Linear dot_general (backward)"."""
    functions = instruction.functions
    modules = [name.removesuffix(".__call__") for name in functions if name.endswith(".__call__")]
    # The innermost modules name the operation. Operations outside of modules are named by the
    # method of the step.
    path = [name for name in modules if name not in WRAPPERS][-3:]
    if not path:
        path = [name for name in functions if name.startswith(STEP)][:1]

    operation = instruction.op_name.rpartition("/")[2] or instruction.opcode
    suffix = " (backward)" if "transpose(jvp" in instruction.op_name else ""
    return f"{'/'.join(path)} {operation}{suffix}".strip()


def kernels(computation: Computation, times: int = 1) -> Iterator[Kernel]:
    """Yields the kernels of a computation that runs `times`, with the kernels of its loops."""
    for instruction in computation.instructions:
        if instruction.opcode == "while":
            # The first computation is the body, which runs once for each iteration.
            yield from kernels(instruction.called[0], times * instruction.trip_count)
        elif instruction.opcode in ("call", "async-start"):
            for called in instruction.called:
                yield from kernels(called, times)
        elif not _is_free(instruction):
            starts_collective = has_target(instruction, "AsyncCollectiveStart")
            yield Kernel(
                instruction,
                times,
                bytes_moved(instruction),
                flops(instruction),
                find_collective(instruction),
                is_async=instruction.opcode.endswith("-start") or starts_collective,
            )


def _is_free(instruction: Instruction) -> bool:
    # An asynchronous operation counts at its start.
    if instruction.opcode in FREE or instruction.opcode.endswith(("-done", "-update")):
        return True
    if instruction.opcode == "fusion":
        return has_target(instruction, "AsyncCollectiveDone")
    if instruction.target in FREE_TARGETS:
        return True
    # The scalar unit of a TPU works on scalar memory, beside the other units.
    return all(shape.memory_space > 1 for shape in instruction.shapes)


@dataclasses.dataclass(frozen=True)
class KernelCost:
    """The sum over kernels with one name and result, such as one operation of all layers."""

    name: str
    result: str
    launches: int
    seconds: float
    bytes: int
    flops: int


@dataclasses.dataclass(frozen=True)
class CollectiveCost:
    """The sum over collectives of one kind and number of devices. A device sends `wire_bytes`."""

    kind: str
    devices: int
    launches: int
    wire_bytes: int


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of programs on one device.

    Attributes:
      flops, float32_flops: FLOPs of all matmuls, and of matmuls with float32 operands.
      bytes: bytes read from and written to main memory.
      kernels: number of launches.
      kernel_seconds: the time of all kernels, except asynchronous ones, one after another.
      memory_seconds: the time of all bytes in main memory.
      wire_seconds: the time of all bytes that collectives send.
    """

    flops: int
    float32_flops: int
    bytes: int
    kernels: int
    kernel_seconds: float
    memory_seconds: float
    wire_seconds: float
    costliest_kernels: Sequence[KernelCost]
    collectives: Sequence[CollectiveCost]

    @property
    def seconds(self) -> float:
        """The bound if kernels, asynchronous copies and the wire overlap as far as they can."""
        return max(self.kernel_seconds, self.memory_seconds, self.wire_seconds)


def cost(programs: Sequence[tuple[Program, int]], target: Target) -> Cost:
    """Returns the cost of several programs, given each program and how often it runs."""

    launched = []
    for program, repetitions in programs:
        launched += kernels(program.entry, repetitions)

    # Add up the kernels by name and result, and the collectives by kind and devices.
    costs_by_name = defaultdict(Counter)
    sent = defaultdict(Counter)
    for kernel in launched:
        times = kernel.times
        shapes = kernel.instruction.shapes
        result = str(shapes[0]) if shapes else ""
        costs_by_name[describe(kernel.instruction), result].update(
            launches=times,
            seconds=times * seconds(kernel, target),
            bytes=times * kernel.bytes,
            flops=times * kernel.flops.total,
        )
        collective = kernel.collective
        if collective is not None:
            wire_bytes = times * collective.wire_bytes
            sent[collective.kind, collective.devices].update(launches=times, wire_bytes=wire_bytes)

    costs = [KernelCost(*key, **sums) for key, sums in costs_by_name.items()]
    collectives = [CollectiveCost(*key, **sums) for key, sums in sent.items()]
    bytes_in_memory = sum(cost.bytes for cost in costs)
    return Cost(
        flops=sum(cost.flops for cost in costs),
        float32_flops=sum(kernel.times * kernel.flops.float32 for kernel in launched),
        bytes=bytes_in_memory,
        kernels=sum(cost.launches for cost in costs),
        kernel_seconds=sum(
            kernel.times * seconds(kernel, target) for kernel in launched if not kernel.is_async
        ),
        memory_seconds=bytes_in_memory / target.kind.bandwidth,
        wire_seconds=sum(cost.wire_bytes for cost in collectives) / target.interconnect,
        costliest_kernels=sorted(costs, key=lambda cost: -cost.seconds)[:TOP],
        collectives=sorted(collectives, key=lambda cost: -cost.wire_bytes),
    )


def seconds(kernel: Kernel, target: Target) -> float:
    """Returns the least time of one launch: the time of its bytes or its FLOPs, plus overhead."""
    kind = target.kind
    flops = kernel.flops
    memory_seconds = kernel.bytes / kind.bandwidth
    matmul_seconds = (flops.total - flops.float32) / kind.bfloat16 + flops.float32 / kind.float32
    launch_seconds = GPU_LAUNCH_SECONDS if kind.platform == "gpu" else 0.0
    return max(memory_seconds, matmul_seconds) + launch_seconds
