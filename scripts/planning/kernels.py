"""The kernels that a program launches: name, bytes, FLOPs and collective of each."""

import dataclasses
from collections.abc import Iterator

from scripts.planning.hlo import Computation, Instruction
from scripts.planning.products import Flops, flops
from scripts.planning.traffic import Collective, bytes_moved, find_collective, has_target

FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"}
FREE |= {"optimization-barrier", "add-dependency"}
FREE_TARGETS = ("ConcatBitcast", "AssumeGatherIndicesInBound")  # of custom calls on TPUs
TOP = 10  # kernels and arrays in a report
STEP, MODEL = "TrainStep.", "Transformer."  # what calls the model, and the outermost module, are the same everywhere


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel, launched `times` a step; bytes in main memory and FLOPs of products are those of one launch.

    Attributes:
      is_async: a copy or collective that runs beside other kernels.
    """

    instruction: Instruction
    times: int
    bytes: int
    flops: Flops
    collective: Collective | None
    is_async: bool

    @property
    def is_uncounted(self) -> bool:
        """True if the program does not state the FLOPs of the kernel, such as one of Pallas."""
        return self.instruction.opcode == "custom-call" and not self.flops.total


def describe(instruction: Instruction) -> str:
    """Returns the modules and the operation that an instruction belongs to.

    For instance "Decoder/FeedForward/Linear dot_general (backward)". An instruction without a source has its own name.
    """
    functions = [name.removesuffix(".__call__") for name in instruction.functions]
    calls = [place for place, name in enumerate(functions) if name.startswith(STEP)]
    inner = functions[calls[-1] + 1 :] if calls else functions
    methods = [name for name in inner if name[:1].isupper() and "<" not in name and not f"{name}.".startswith(MODEL)]
    methods = list(dict.fromkeys(methods))
    path = [*methods[:1], *methods[1:][-2:]] or [functions[place].split(".<")[0] for place in calls[-1:]]
    prefix = ["copy of"] * instruction.opcode.startswith(("copy-", "slice-")) + ["/".join(path)] * bool(path)
    suffix = ["(backward)"] * ("transpose(jvp" in instruction.op_name)
    return " ".join([*prefix, instruction.op_name.rpartition("/")[2] or instruction.opcode, *suffix])


def kernels(computation: Computation, times: int = 1) -> Iterator[Kernel]:
    """Yields the kernels of a computation that runs `times`; bodies of loops run as often as is known."""
    for instruction in computation.instructions:
        if instruction.opcode == "while":
            yield from kernels(instruction.called[0], times * instruction.trip_count)
        elif instruction.opcode == "conditional":
            branches = [list(kernels(branch, times)) for branch in instruction.called]
            yield from max(branches, key=lambda branch: sum(kernel.bytes for kernel in branch), default=[])
        elif instruction.opcode in ("call", "async-start"):
            for called in instruction.called:
                yield from kernels(called, times)
        elif not _is_free(instruction):
            yield Kernel(
                instruction,
                times,
                bytes_moved(instruction),
                flops(instruction),
                find_collective(instruction),
                instruction.opcode.endswith("-start") or has_target(instruction, "AsyncCollectiveStart"),
            )


def _is_free(instruction: Instruction) -> bool:
    if instruction.opcode in FREE or instruction.opcode.endswith(("-done", "-update")):
        return True
    if instruction.opcode == "fusion":
        return has_target(instruction, "AsyncCollectiveDone")
    # The scalar unit of a TPU works on scalar memory, beside the other units.
    return all(shape.memory_space > 1 for shape in instruction.shapes) or instruction.target in FREE_TARGETS
