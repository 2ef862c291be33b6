"""The least time that a program can take on a device: its roofline (Williams et al. 2009), kernel by kernel."""

import dataclasses
from collections.abc import Sequence

from transformer.planning.devices import Target
from transformer.planning.hlo import Program
from transformer.planning.kernels import Kernel, kernels
from transformer.planning.names import describe


@dataclasses.dataclass(frozen=True)
class KernelCost:
    """Kernels of one kind, such as those of the same line of code in all layers: their number, and sums over them."""

    name: str
    result: str
    launches: int
    seconds: float
    bytes: int
    flops: int
    float32_flops: int


@dataclasses.dataclass(frozen=True)
class CollectiveCost:
    """Collectives of one kind and number of devices. `wire_bytes` are those that a device sends."""

    kind: str
    devices: int
    launches: int
    bytes: int
    wire_bytes: int


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of programs on one device.

    Attributes:
      flops, float32_flops: of products, and of those on float32 operands.
      bytes: read from and written to main memory.
      kernel_seconds: the larger of memory and product time of each kernel, plus launches, one kernel after another.
      wire_seconds: of what collectives send.
      uncounted: calls of kernels, such as Pallas's, whose FLOPs the program does not state.
      kernels: largest first.
    """

    launches: int
    flops: int
    float32_flops: int
    bytes: int
    wire_bytes: int
    kernel_seconds: float
    memory_seconds: float
    wire_seconds: float
    uncounted: int
    kernels: tuple[KernelCost, ...]
    collectives: tuple[CollectiveCost, ...]

    @property
    def seconds(self) -> float:
        """The bound if everything that may overlap does: kernels, asynchronous copies, and the wire."""
        return max(self.kernel_seconds, self.memory_seconds, self.wire_seconds)


def cost(programs: Sequence[tuple[Program, int]], target: Target) -> Cost:
    """Returns the cost of programs and how often each runs."""
    costs = [(each, times * each.times, program) for program, times in programs for each in kernels(program)]
    sums = [0.0] * 6
    for each, times, _ in costs:
        wire = each.collective.wire_bytes if each.collective else 0.0
        exposed = 0.0 if each.is_async else seconds(each, target)
        values = (each.flops.total, each.flops.float32, each.bytes, wire, exposed, _is_uncounted(each))
        sums = [total + times * value for total, value in zip(sums, values, strict=True)]
    flops, float32_flops, bytes_, wire_bytes, kernel_seconds, uncounted = sums
    return Cost(
        launches=sum(times for _, times, _ in costs),
        flops=int(flops),
        float32_flops=int(float32_flops),
        bytes=int(bytes_),
        wire_bytes=int(wire_bytes),
        kernel_seconds=kernel_seconds,
        memory_seconds=bytes_ / target.kind.bandwidth,
        wire_seconds=wire_bytes / target.interconnect,
        uncounted=int(uncounted),
        kernels=_by_name(costs, target),
        collectives=_by_kind(costs),
    )


def seconds(kernel: Kernel, target: Target) -> float:
    """Returns the least time of a launch: the larger of memory and product time, plus the launch itself."""
    kind, flops = target.kind, kernel.flops
    products = (flops.total - flops.float32) / kind.bfloat16 + flops.float32 / kind.float32
    return max(kernel.bytes / kind.bandwidth, products) + kind.launch_seconds


def _is_uncounted(kernel: Kernel) -> bool:
    return kernel.instruction.opcode == "custom-call" and not kernel.flops.total


def _by_name(costs: Sequence[tuple[Kernel, int, Program]], target: Target) -> tuple[KernelCost, ...]:
    groups: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    for each, times, program in costs:
        key = (describe(program, each.instruction), str(each.instruction.shapes[0]) if each.instruction.shapes else "")
        row = (times, times * seconds(each, target), times * each.bytes, *(times * count for count in each.flops))
        groups.setdefault(key, []).append(row)
    sums = [KernelCost(*key, *map(sum, zip(*rows, strict=True))) for key, rows in groups.items()]
    return tuple(sorted(sums, key=lambda each: -each.seconds))


def _by_kind(costs: Sequence[tuple[Kernel, int, Program]]) -> tuple[CollectiveCost, ...]:
    groups: dict[tuple[str, int], list[tuple[float, ...]]] = {}
    for each, times, _ in costs:
        if (found := each.collective) is not None:
            row = (times, times * found.bytes, times * found.wire_bytes)
            groups.setdefault((found.kind, found.devices), []).append(row)
    sums = [CollectiveCost(*key, *map(sum, zip(*rows, strict=True))) for key, rows in groups.items()]
    return tuple(sorted(sums, key=lambda each: -each.wire_bytes))
