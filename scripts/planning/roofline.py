"""The least time that a program can take on a device: its roofline (Williams et al. 2009), kernel
by kernel.
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
FREE_TARGETS = ("ConcatBitcast", "AssumeGatherIndicesInBound")  # of custom calls on TPUs
TOP = 10  # kernels in a report
GPU_LAUNCH_SECONDS = 2.5e-6  # that the launch of a kernel takes at the least
STEP = "CompiledStep."
WRAPPERS = {"Layer", "SublayerConnection"}  # modules around every sublayer, which names leave out


class Kernel(NamedTuple):
    """A kernel, launched `times` a step; bytes in main memory and FLOPs of products are those of
    one launch.
    """

    instruction: Instruction
    times: int
    bytes: int
    flops: Flops
    collective: Collective | None
    is_async: bool  # a copy or collective that runs beside other kernels


def describe(instruction: Instruction) -> str:
    """Returns an instruction's modules and operation, such as "Decoder/FeedForward/Linear
    dot_general (backward)".
    """
    functions = instruction.functions
    modules = [name.removesuffix(".__call__") for name in functions if name.endswith(".__call__")]
    path = [name for name in modules if name not in WRAPPERS][-3:] or [
        f for f in functions if f.startswith(STEP)
    ][:1]
    operation = instruction.op_name.rpartition("/")[2] or instruction.opcode
    suffix = " (backward)" * ("transpose(jvp" in instruction.op_name)
    return f"{'/'.join(path)} {operation}{suffix}".strip()


def kernels(computation: Computation, times: int = 1) -> Iterator[Kernel]:
    """Yields the kernels of a computation that runs `times`; bodies of loops run as often as is
    known.
    """
    for instruction in computation.instructions:
        if instruction.opcode == "while":
            yield from kernels(instruction.called[0], times * instruction.trip_count)
        elif instruction.opcode in ("call", "async-start"):
            for called in instruction.called:
                yield from kernels(called, times)
        elif not _is_free(instruction):
            is_async = instruction.opcode.endswith("-start") or has_target(
                instruction, "AsyncCollectiveStart"
            )
            work = bytes_moved(instruction), flops(instruction), find_collective(instruction)
            yield Kernel(instruction, times, *work, is_async)


def _is_free(instruction: Instruction) -> bool:
    if instruction.opcode in FREE or instruction.opcode.endswith(("-done", "-update")):
        return True
    if instruction.opcode == "fusion":
        return has_target(instruction, "AsyncCollectiveDone")
    # The scalar unit of a TPU works on scalar memory, beside the other units.
    return (
        all(shape.memory_space > 1 for shape in instruction.shapes)
        or instruction.target in FREE_TARGETS
    )


@dataclasses.dataclass(frozen=True)
class KernelCost:
    """Kernels of one kind, such as those of the same line of code in all layers: their number, and
    sums over them.
    """

    name: str
    result: str
    launches: int
    seconds: float
    bytes: int
    flops: int


@dataclasses.dataclass(frozen=True)
class CollectiveCost:
    """Collectives of one kind and number of devices. `wire_bytes` are those that a device sends."""

    kind: str
    devices: int
    launches: int
    wire_bytes: int


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of programs on one device.

    Attributes:
      flops, float32_flops: of products, and of those on float32 operands.
      bytes: read from and written to main memory.
      kernels: launches.
      kernel_seconds: the larger of memory and product time of each kernel, plus launches, one
          kernel after another.
      wire_seconds: of what collectives send.
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
        """The bound if everything that may overlap does: kernels, asynchronous copies, and the
        wire.
        """
        return max(self.kernel_seconds, self.memory_seconds, self.wire_seconds)


def cost(programs: Sequence[tuple[Program, int]], target: Target) -> Cost:
    """Returns the cost of programs and how often each runs."""
    launched = [kernel for program, times in programs for kernel in kernels(program.entry, times)]
    by_name = defaultdict(Counter)
    sent = defaultdict(Counter)
    for kernel in launched:
        times = kernel.times
        collective = kernel.collective
        result = str(kernel.instruction.shapes[0]) if kernel.instruction.shapes else ""
        work = {"seconds": times * seconds(kernel, target), "bytes": times * kernel.bytes}
        by_name[describe(kernel.instruction), result].update(
            launches=times, flops=times * kernel.flops.total, **work
        )
        if collective is not None:
            key = collective.kind, collective.devices
            sent[key].update(launches=times, wire_bytes=times * collective.wire_bytes)
    costs = [KernelCost(*key, **values) for key, values in by_name.items()]
    collectives = [CollectiveCost(*key, **values) for key, values in sent.items()]
    moved = sum(cost.bytes for cost in costs)
    return Cost(
        flops=sum(cost.flops for cost in costs),
        float32_flops=sum(kernel.times * kernel.flops.float32 for kernel in launched),
        bytes=moved,
        kernels=sum(cost.launches for cost in costs),
        kernel_seconds=sum(
            kernel.times * seconds(kernel, target) for kernel in launched if not kernel.is_async
        ),
        memory_seconds=moved / target.kind.bandwidth,
        wire_seconds=sum(cost.wire_bytes for cost in collectives) / target.interconnect,
        costliest_kernels=sorted(costs, key=lambda cost: -cost.seconds)[:TOP],
        collectives=sorted(collectives, key=lambda cost: -cost.wire_bytes),
    )


def seconds(kernel: Kernel, target: Target) -> float:
    """Returns the least time of a launch: the larger of memory and product time, plus the launch
    itself.
    """
    kind = target.kind
    flops = kernel.flops
    products = (flops.total - flops.float32) / kind.bfloat16 + flops.float32 / kind.float32
    return max(kernel.bytes / kind.bandwidth, products) + (
        GPU_LAUNCH_SECONDS if kind.platform == "gpu" else 0.0
    )
