"""The work of an instruction: FLOPs of its products, bytes in main memory, and bytes sent to other
devices.
"""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scripts.planning.hlo import Computation, Instruction, Shape, integers

# Products of cuDNN's attention: q k^T and the weighted values; backward, their four gradients and q
# k^T again.
ATTENTION_PRODUCTS = {"__cudnn$fmhaSoftmax": 2, "__cudnn$fmhaSoftmaxBackward": 5}
# read only the part of their first operand that they return
VIEWS = {"slice", "dynamic-slice", "gather"}
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
    """FLOPs of products: all, and those of float32 operands."""

    total: int = 0
    float32: int = 0


def flops(instruction: Instruction) -> Flops:
    """Returns the FLOPs of the products in an instruction, and in what it calls."""
    if instruction.opcode in ("fusion", "call"):
        parts = [flops(inner) for called in instruction.called for inner in called.instructions]
        return Flops(sum(part.total for part in parts), sum(part.float32 for part in parts))
    if instruction.opcode == "convolution":
        products = _convolution(instruction)
    elif instruction.opcode == "dot" or instruction.target.startswith("__cublas$"):
        left = instruction.operands[0].shapes[0].dims
        contracted = integers(
            instruction.attribute(r'lhs_contracting_dim(?:s=\{|ensions": ?\[)([^}\]]*)')
        )
        products = math.prod(instruction.shapes[0].dims) * math.prod(
            left[axis] for axis in contracted
        )
    elif instruction.target in ATTENTION_PRODUCTS:
        width = instruction.operands[0].shapes[0].dims[-1]
        weights = integers(
            instruction.attribute(r'"intermediate_tensor_shape":.*?"dimensions": ?\[([^\]]*)\]')
        )
        # weights (B, H, T, S)
        products = ATTENTION_PRODUCTS[instruction.target] * math.prod(weights) * width
    else:
        return Flops()
    is_float32 = instruction.operands[0].shapes[0].dtype == "f32"
    return Flops(2 * products, 2 * products * is_float32)


def _convolution(instruction: Instruction) -> int:
    """Returns the products of a convolution without those on padding.

    TPUs' batched products are convolutions.
    """
    # Names of the axes of operands and result, such as 0b1f_0o1i->0b1f; digits are spatial axes.
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes).groups()
    dims = [array.shapes[0].dims for array in (*instruction.operands[:2], instruction)]
    inputs, kernel, result = (dict(zip(labels[i], dims[i], strict=True)) for i in range(3))
    window = [item.split("=") for item in instruction.attribute(r"\bwindow=\{([^}]*)\}").split()]
    products = result["b"] * result["f"] * kernel["i"]
    for axis in filter(str.isdigit, result):
        # size=3x3 pad=1_1x1_1
        settings = {name: by_axis.split("x")[int(axis)] for name, by_axis in window}
        products *= _taps(inputs[axis], kernel[axis], result[axis], settings)
    return products


def _taps(inputs: int, kernel: int, outputs: int, window: dict[str, str]) -> int:
    """Returns how many pairs of an output and a kernel position of one axis read an element of the
    input.
    """
    dilation = int(window.get("lhs_dilate", 1))
    low = int(window.get("pad", "0_0").split("_")[0])
    starts = np.arange(outputs)[:, None] * int(window.get("stride", 1)) - low
    positions = starts + np.arange(kernel) * int(window.get("rhs_dilate", 1))
    is_inside = (positions >= 0) & (positions <= (inputs - 1) * dilation)
    return int(np.count_nonzero(is_inside & (positions % dilation == 0)))


def bytes_moved(instruction: Instruction) -> int:
    """Returns the bytes that an instruction reads and writes, each operand and result once.

    Of an operand that is only sliced, the slices count; of a result that is updated in place, the
    update.
    """
    if instruction.opcode == "fusion":
        (called,) = instruction.called
        parameters = {
            inner.number: inner for inner in called.instructions if inner.opcode == "parameter"
        }
        parts = [
            _read_in(called, parameters[number]) for number in range(len(instruction.operands))
        ]
        written = _written_by_fusion(instruction)
    else:
        parts = [_read(instruction, number) for number in range(len(instruction.operands))]
        written = _written(instruction)
    wholes = [in_memory(operand.shapes) for operand in instruction.operands]
    return written + sum(map(min, wholes, parts))


def in_memory(shapes: Sequence[Shape]) -> int:
    """Returns the bytes of these arrays that are in main memory."""
    return sum(shape.bytes for shape in shapes if shape.memory_space == 0)


def _read(user: Instruction, number: int) -> float:
    """Returns the bytes of operand `number` that an instruction reads; infinity: all."""
    if number == 0 and user.opcode in VIEWS:
        return sum(shape.bytes for shape in user.shapes)
    # its result repeats the operand, then has the slice
    if number == 0 and user.opcode == "slice-start":
        return user.shapes[1].bytes
    return 0 if number == 0 and user.opcode == "dynamic-update-slice" else math.inf


def _read_in(called: Computation, value: Instruction) -> float:
    """Returns the bytes of a value that a fusion reads; infinity: all."""
    return sum(
        _read_in(called, user) if user.opcode == "bitcast" else _read(user, number)
        for user in called.instructions
        if user.opcode != "tuple" and not is_collective(user)  # these pass it on
        for number, operand in enumerate(user.operands)
        if operand is value
    )


def _written(instruction: Instruction) -> int:
    if instruction.opcode == "dynamic-update-slice":
        return in_memory(instruction.operands[1].shapes)
    if instruction.target.startswith("__cublas$"):
        return in_memory(instruction.shapes[:1])  # the other result is workspace
    total = in_memory(instruction.shapes)
    if instruction.opcode.endswith("-start"):  # the result repeats the operands
        total = max(total - sum(in_memory(operand.shapes) for operand in instruction.operands), 0)
    return total


def _written_by_fusion(fusion: Instruction) -> int:
    """Returns the bytes that a fusion writes, without parameters and results of collectives, which
    it passes on.
    """
    root = next(inner for inner in fusion.called[0].instructions if inner.is_root)
    results = root.operands if root.opcode == "tuple" else [root]
    if len(results) != len(fusion.shapes):
        return in_memory(fusion.shapes)
    total = 0
    for shape, result in zip(fusion.shapes, results, strict=True):
        while result.opcode == "bitcast":
            (result,) = result.operands
        if result.opcode == "dynamic-update-slice":
            total += in_memory(result.operands[1].shapes)
        elif result.opcode != "parameter" and not (
            is_collective(result) and root.opcode == "tuple"
        ):
            total += in_memory([shape])
    return total


class Collective(NamedTuple):
    """A collective over some devices. `bytes` are those of its operands on a device."""

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
    """Returns the collective that an instruction is, or that its fusion contains, as on TPUs; None
    over one device.
    """
    if is_collective(instruction):
        size = sum(shape.bytes for operand in instruction.operands for shape in operand.shapes)
        collective = Collective(
            instruction.opcode.removesuffix("-start"), instruction.group_size, size
        )
        return collective if collective.devices > 1 else None
    if instruction.opcode != "fusion":
        return None
    (called,) = instruction.called
    # Such a fusion of a TPU's program continues, or ends, a collective that an earlier fusion
    # starts.
    if called.name.startswith("async_collective_fusion") or has_target(
        instruction, "AsyncCollectiveDone"
    ):
        return None
    collective = next(filter(None, map(find_collective, called.instructions)), None)
    # A TPU's reduce-scatter is a fusion of an all-reduce and a slice.
    is_scattered = "reduce-scatter" in f"{instruction.name} {called.name}".replace("_", "-")
    if collective and collective.kind == "all-reduce" and is_scattered:
        return collective._replace(kind="reduce-scatter")
    return collective


def has_target(instruction: Instruction, target: str) -> bool:
    """Tells whether an instruction, or one in its fusion, is a custom call of this target."""
    if instruction.opcode == "fusion":
        return any(inner.target == target for inner in instruction.called[0].instructions)
    return instruction.target == target
