"""The work of an instruction: FLOPs, bytes in main memory, and bytes sent to other devices."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scripts.planning.hlo import Computation, Instruction, Shape, integers

# Matmuls of cuDNN's attention. Forward: q k^T and the weighted values. Backward: q k^T again, and
# two gradients for each of the two.
ATTENTION_MATMULS = {"__cudnn$fmhaSoftmax": 2, "__cudnn$fmhaSoftmaxBackward": 5}
# These read only the part of their first operand that they return.
VIEWS = {"slice", "dynamic-slice", "gather"}
# A fusion reads as much of their first operand as of their result.
PASSED_ON = {"bitcast", "pad"}
# Bytes that a device sends for each byte of a collective's operands, in a ring of n devices.
SENT = {
    "all-gather": lambda n: n - 1,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda n: 1,
    "collective-broadcast": lambda n: 1,
}


class Flops(NamedTuple):
    """FLOPs of matmuls: all, and the ones with float32 operands."""

    total: int = 0
    float32: int = 0


def flops(instruction: Instruction) -> Flops:
    """Returns the FLOPs of the matmuls in an instruction and in the computations that it calls."""
    if instruction.opcode in ("fusion", "call"):
        parts = [flops(inner) for called in instruction.called for inner in called.instructions]
        return Flops(sum(part.total for part in parts), sum(part.float32 for part in parts))
    if instruction.opcode == "convolution":
        products = _convolution(instruction)
    elif instruction.opcode == "dot" or instruction.target.startswith("__cublas$"):
        # A dot and a library call write their contracted axes differently.
        lhs_dims = instruction.operands[0].shapes[0].dims
        contracted_axes = integers(
            instruction.attribute(r'lhs_contracting_dim(?:s=\{|ensions": ?\[)([^}\]]*)')
        )
        depth = math.prod(lhs_dims[axis] for axis in contracted_axes)
        products = math.prod(instruction.shapes[0].dims) * depth
    elif instruction.target in ATTENTION_MATMULS:
        # Each of these matmuls has one product for each weight and each dimension of a head.
        width = instruction.operands[0].shapes[0].dims[-1]
        weights = integers(  # (B, H, T, S)
            instruction.attribute(r'"intermediate_tensor_shape":.*?"dimensions": ?\[([^\]]*)\]')
        )
        products = ATTENTION_MATMULS[instruction.target] * math.prod(weights) * width
    else:
        return Flops()

    # A product of two numbers is a multiplication and an addition.
    is_float32 = instruction.operands[0].shapes[0].dtype == "f32"
    return Flops(2 * products, 2 * products * is_float32)


def _convolution(instruction: Instruction) -> int:
    """Returns the number of products in a convolution, without products of padding.

    Batched matmuls on TPUs are convolutions.
    """
    # Names of the axes of operands and result, such as 0b1f_0o1i->0b1f. Digits are spatial axes.
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes).groups()
    arrays = (*instruction.operands[:2], instruction)
    inputs, kernel, result = [
        dict(zip(names, array.shapes[0].dims, strict=True))
        for names, array in zip(labels, arrays, strict=True)
    ]

    window = [item.split("=") for item in instruction.attribute(r"\bwindow=\{([^}]*)\}").split()]

    products = result["b"] * result["f"] * kernel["i"]
    for axis in filter(str.isdigit, result):
        # The window states each setting for all axes: size=3x3 pad=1_1x1_1.
        settings = {name: by_axis.split("x")[int(axis)] for name, by_axis in window}
        products *= _taps(inputs[axis], kernel[axis], result[axis], settings)
    return products


def _taps(inputs: int, kernel: int, outputs: int, window: dict[str, str]) -> int:
    """Counts the pairs of output and kernel positions, on one axis, that read the input.

    The other pairs read padding.
    """
    dilation = int(window.get("lhs_dilate", 1))
    low = int(window.get("pad", "0_0").split("_")[0])

    # The position that each pair reads, in the padded and dilated input.
    starts = np.arange(outputs)[:, None] * int(window.get("stride", 1)) - low
    positions = starts + np.arange(kernel) * int(window.get("rhs_dilate", 1))

    # Positions outside are padding, and so are the positions between dilated elements.
    is_inside = (positions >= 0) & (positions <= (inputs - 1) * dilation)
    return int(np.count_nonzero(is_inside & (positions % dilation == 0)))


def bytes_moved(instruction: Instruction) -> int:
    """Returns the bytes that an instruction reads and writes, each operand and result once.

    An operand that is only sliced counts the bytes of the slices. A result that is updated in place
    counts the bytes of the update.
    """
    operands = instruction.operands
    # A fusion reads and writes only what its computation does with its parameters and result.
    if instruction.opcode == "fusion":
        (called,) = instruction.called
        parameters = {
            inner.number: inner for inner in called.instructions if inner.opcode == "parameter"
        }
        reads = [_read_in(called, parameters[number]) for number in range(len(operands))]
        total = _written_by_fusion(instruction)
    else:
        reads = [_read(instruction, number) for number in range(len(operands))]
        total = _written(instruction)

    # An operand is read once, even if several slices overlap.
    for operand, size in zip(operands, reads, strict=True):
        total += min(in_memory(operand.shapes), size)
    return total


def in_memory(shapes: Sequence[Shape]) -> int:
    """Returns the bytes of these arrays that are in main memory."""
    return sum(shape.bytes for shape in shapes if shape.memory_space == 0)


def _read(user: Instruction, number: int) -> float:
    """Returns the bytes of an operand that an instruction reads; infinity if it reads all."""
    if number == 0 and user.opcode in VIEWS:
        return sum(shape.bytes for shape in user.shapes)
    # The result repeats the operand, then has the slice.
    if number == 0 and user.opcode == "slice-start":
        return user.shapes[1].bytes
    if number == 0 and user.opcode == "dynamic-update-slice":
        return 0
    return math.inf


def _read_in(called: Computation, value: Instruction) -> float:
    """Returns the bytes of a value that a fusion reads; infinity if it reads all."""
    total = 0
    for user in called.instructions:
        if user.opcode == "tuple" or is_collective(user):  # these pass the value on
            continue
        for number, operand in enumerate(user.operands):
            if operand is not value:
                continue
            is_passed_on = number == 0 and user.opcode in PASSED_ON
            total += _read_in(called, user) if is_passed_on else _read(user, number)
    return total


def _written(instruction: Instruction) -> int:
    if instruction.opcode == "dynamic-update-slice":
        return in_memory(instruction.operands[1].shapes)
    if instruction.target.startswith("__cublas$"):
        return in_memory(instruction.shapes[:1])  # the second result is workspace
    total = in_memory(instruction.shapes)
    if instruction.opcode.endswith("-start"):  # the result repeats the operands
        repeated = sum(in_memory(operand.shapes) for operand in instruction.operands)
        total = max(total - repeated, 0)
    return total


def _written_by_fusion(fusion: Instruction) -> int:
    """Returns the bytes that a fusion writes.

    Parameters and results of collectives do not count: a fusion passes them on without a copy.
    """
    # A fusion with several results ends with a tuple.
    root = next(inner for inner in fusion.called[0].instructions if inner.is_root)
    results = root.operands if root.opcode == "tuple" else [root]
    if len(results) != len(fusion.shapes):
        return in_memory(fusion.shapes)

    total = 0
    for shape, result in zip(fusion.shapes, results, strict=True):
        # A bitcast writes nothing.
        while result.opcode == "bitcast":
            (result,) = result.operands
        # An update in place writes only the update.
        if result.opcode == "dynamic-update-slice":
            total += in_memory(result.operands[1].shapes)
            continue
        is_passed_on = is_collective(result) and root.opcode == "tuple"
        if result.opcode != "parameter" and not is_passed_on:
            total += in_memory([shape])
    return total


class Collective(NamedTuple):
    """A collective over some devices. `bytes` is the size of its operands on one device."""

    kind: str
    devices: int
    bytes: int

    @property
    def wire_bytes(self) -> int:
        """The bytes that a device sends."""
        return round(self.bytes * SENT[self.kind](self.devices))


def is_collective(instruction: Instruction) -> bool:
    return instruction.opcode.removesuffix("-start") in SENT


def find_collective(instruction: Instruction) -> Collective | None:
    """Returns the collective of an instruction, or in its fusion, as on TPUs; None without one.

    A collective over one device sends nothing and counts as none.
    """
    if is_collective(instruction):
        size = sum(shape.bytes for operand in instruction.operands for shape in operand.shapes)
        kind = instruction.opcode.removesuffix("-start")
        devices = instruction.group_size
        return Collective(kind, devices, size) if devices > 1 else None
    if instruction.opcode != "fusion":
        return None
    (called,) = instruction.called

    # Such a fusion in a TPU's program continues or ends the collective of an earlier fusion.
    is_continued = called.name.startswith("async_collective_fusion")
    if is_continued or has_target(instruction, "AsyncCollectiveDone"):
        return None
    collective = next(filter(None, map(find_collective, called.instructions)), None)
    # A TPU's reduce-scatter is a fusion of an all-reduce and a slice.
    is_scattered = "reduce-scatter" in f"{instruction.name} {called.name}".replace("_", "-")
    if collective and collective.kind == "all-reduce" and is_scattered:
        return collective._replace(kind="reduce-scatter")
    return collective


def has_target(instruction: Instruction, target: str) -> bool:
    """True if an instruction, or one in its fusion, is a custom call of this target."""
    if instruction.opcode == "fusion":
        return any(inner.target == target for inner in instruction.called[0].instructions)
    return instruction.target == target
