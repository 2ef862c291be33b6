"""The least time that a program can take on a device: its roofline (Williams et al. 2009), kernel by kernel."""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

from scripts.planning.devices import Target
from scripts.planning.hlo import Program
from scripts.planning.kernels import TOP, Kernel, describe, kernels


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
      kernels, kernels_without_flops: launches, and those of kernels such as Pallas's, whose FLOPs are not stated.
    """

    flops: int
    float32_flops: int
    bytes: int
    kernels: int
    kernels_without_flops: int
    kernel_seconds: float
    memory_seconds: float
    wire_seconds: float
    costliest_kernels: Sequence[KernelCost]
    collectives: Sequence[CollectiveCost]

    @property
    def seconds(self) -> float:
        """The bound if everything that may overlap does: kernels, asynchronous copies, and the wire."""
        return max(self.kernel_seconds, self.memory_seconds, self.wire_seconds)


def cost(programs: Sequence[tuple[Program, int]], target: Target) -> Cost:
    """Returns the cost of programs and how often each runs."""
    launched = [(kernel, times * kernel.times) for program, times in programs for kernel in kernels(program.entry)]
    costs, sent = [], []
    for kernel, times in launched:
        result = str(kernel.instruction.shapes[0]) if kernel.instruction.shapes else ""
        values = (1, seconds(kernel, target), kernel.bytes, *kernel.flops)
        costs.append(KernelCost(describe(kernel.instruction), result, *(times * value for value in values)))
        if (collective := kernel.collective) is not None:
            sizes = (times * collective.bytes, times * collective.wire_bytes)
            sent.append(CollectiveCost(collective.kind, collective.devices, times, *sizes))
    moved = sum(cost.bytes for cost in costs)
    return Cost(
        flops=sum(cost.flops for cost in costs),
        float32_flops=sum(cost.float32_flops for cost in costs),
        bytes=moved,
        kernels=sum(cost.launches for cost in costs),
        kernels_without_flops=sum(times for kernel, times in launched if kernel.is_uncounted),
        kernel_seconds=sum(times * seconds(kernel, target) for kernel, times in launched if not kernel.is_async),
        memory_seconds=moved / target.kind.bandwidth,
        wire_seconds=sum(cost.wire_bytes for cost in sent) / target.interconnect,
        costliest_kernels=sorted(_merged(costs), key=lambda cost: -cost.seconds)[:TOP],
        collectives=sorted(_merged(sent), key=lambda cost: -cost.wire_bytes),
    )


def seconds(kernel: Kernel, target: Target) -> float:
    """Returns the least time of a launch: the larger of memory and product time, plus the launch itself."""
    kind, flops = target.kind, kernel.flops
    products = (flops.total - flops.float32) / kind.bfloat16 + flops.float32 / kind.float32
    return max(kernel.bytes / kind.bandwidth, products) + kind.launch_seconds


def _merged(costs: Sequence[Any]) -> list[Any]:
    """Returns one cost for all that have the same first two fields; its other fields are their sums."""
    groups = collections.defaultdict(list)
    for cost in costs:
        values = dataclasses.astuple(cost)
        groups[values[:2]].append(values[2:])
    return [type(costs[0])(*key, *map(sum, zip(*values, strict=True))) for key, values in groups.items()]
