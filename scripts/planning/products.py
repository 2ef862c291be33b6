"""FLOPs of the matrix products in a program: dots, convolutions (products on TPUs), cuDNN's attention."""

import math
from typing import NamedTuple

import numpy as np

from scripts.planning.hlo import Instruction

# Products of cuDNN's attention: q k^T and the weighted values; backward, their four gradients and q k^T again.
ATTENTION_PRODUCTS = {"__cudnn$fmhaSoftmax": 2, "__cudnn$fmhaSoftmaxBackward": 5}


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
        products = math.prod(instruction.shapes[0].dims) * math.prod(left[axis] for axis in instruction.contracted_axes)
    elif instruction.target in ATTENTION_PRODUCTS:
        width = instruction.operands[0].shapes[0].dims[-1]
        products = ATTENTION_PRODUCTS[instruction.target] * math.prod(instruction.attention_weights) * width
    else:
        return Flops()
    is_float32 = instruction.operands[0].shapes[0].dtype == "f32"
    return Flops(2 * products, 2 * products * is_float32)


def _convolution(instruction: Instruction) -> int:
    """Returns the products of a convolution without those on padding. TPUs' batched products are convolutions."""
    shapes = (instruction.operands[0].shapes[0], instruction.operands[1].shapes[0], instruction.shapes[0])
    inputs, kernel, result = (
        dict(zip(labels, shape.dims, strict=True))
        for labels, shape in zip(instruction.axis_labels, shapes, strict=True)
    )
    products = result["b"] * result["f"] * kernel["i"]
    for axis in filter(str.isdigit, result):
        window = {name: by_axis[int(axis)] for name, by_axis in instruction.window.items()}
        products *= _taps(inputs[axis], kernel[axis], result[axis], window)
    return products


def _taps(inputs: int, kernel: int, outputs: int, window: dict[str, str]) -> int:
    """Returns how many pairs of an output and a kernel position of one axis read an element of the input."""
    dilation, low = int(window.get("lhs_dilate", 1)), int(window.get("pad", "0_0").split("_")[0])
    starts = np.arange(outputs)[:, None] * int(window.get("stride", 1)) - low
    positions = starts + np.arange(kernel) * int(window.get("rhs_dilate", 1))
    is_inside = (positions >= 0) & (positions <= (inputs - 1) * dilation)
    return int(np.count_nonzero(is_inside & (positions % dilation == 0)))
