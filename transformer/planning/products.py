"""FLOPs of the matrix products in a program: dots, convolutions (products on TPUs), cuDNN's attention."""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from transformer.planning.hlo import Computation, Instruction, Program, Shape

# Products of cuDNN's attention: q k^T and the weighted values; backward, their four gradients and q k^T again.
ATTENTION_PRODUCTS = {"__cudnn$fmhaSoftmax": 2, "__cudnn$fmhaSoftmaxBackward": 5}


class Flops(NamedTuple):
    """FLOPs of products: all, and those of float32 operands."""

    total: int = 0
    float32: int = 0

    def __add__(self, other: "Flops") -> "Flops":
        return Flops(self.total + other.total, self.float32 + other.float32)


def flops(program: Program, instruction: Instruction, computation: Computation) -> Flops:
    """Returns the FLOPs of the products in an instruction of the computation, and in what it calls."""
    operands = [computation[name].shapes[0] for name in instruction.operands if computation[name].shapes]
    if instruction.opcode == "dot":
        return _of(operands[0], 2 * _size(instruction) * _contracted(instruction, operands[0]))
    if instruction.opcode == "convolution":
        return _of(operands[0], _convolution(instruction, *operands[:2]))
    if instruction.opcode == "custom-call":
        return _of(operands[0], _library(instruction, operands[0])) if operands else Flops()
    if instruction.opcode in ("fusion", "call"):
        called = (program.computations[name] for name in instruction.called)
        return sum((flops(program, each, inner) for inner in called for each in inner.values()), Flops())
    return Flops()


def _of(operand: Shape, total: int) -> Flops:
    return Flops(total, total if operand.dtype == "f32" else 0)


def _size(instruction: Instruction) -> int:
    return math.prod(instruction.shapes[0].dims)


def _contracted(dot: Instruction, left: Shape) -> int:
    return math.prod(left.dims[axis] for axis in _integers(dot.attribute("lhs_contracting_dims")))


def _library(call: Instruction, left: Shape) -> int:
    """Returns the FLOPs of a call of cuBLAS or of cuDNN's attention, whose attributes have the dimensions."""
    if call.target in ATTENTION_PRODUCTS:
        shape = re.search(r'"intermediate_tensor_shape":.*?"dimensions": ?\[([^\]]*)\]', call.attributes)
        return 2 * ATTENTION_PRODUCTS[call.target] * math.prod(_integers(shape[1])) * left.dims[-1]
    if call.target.startswith("__cublas$"):
        contracted = re.search(r'"lhs_contracting_dimensions": ?\[([^\]]*)\]', call.attributes)
        return 2 * _size(call) * math.prod(left.dims[axis] for axis in _integers(contracted[1]))
    return 0


def _integers(text: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", text)]


def _convolution(instruction: Instruction, left: Shape, right: Shape) -> int:
    """Returns the FLOPs of a convolution without those on padding: TPUs' batched products are convolutions.

    `dim_labels`, such as 0b1f_0o1i->0b1f, name the axes of both operands and of the result; digits are spatial.
    """
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes).groups()
    shapes = (left.dims, right.dims, instruction.shapes[0].dims)
    inputs, kernel, result = (dict(zip(names, dims, strict=True)) for names, dims in zip(labels, shapes, strict=True))
    window = dict(item.split("=") for item in instruction.attribute("window").split())
    products = result["b"] * result["f"] * kernel["i"]
    for axis in filter(str.isdigit, result):
        options = {name: text.split("x")[int(axis)] for name, text in window.items()}
        products *= _taps(inputs[axis], kernel[axis], result[axis], options)
    return 2 * products


def _taps(inputs: int, kernel: int, outputs: int, window: Mapping[str, str]) -> int:
    """Returns how many pairs of an output and a kernel position of one axis read an element of the input."""
    dilation, low = int(window.get("lhs_dilate", 1)), int(window.get("pad", "0_0").split("_")[0])
    starts = np.arange(outputs)[:, None] * int(window.get("stride", 1)) - low
    positions = starts + np.arange(kernel) * int(window.get("rhs_dilate", 1))
    is_inside = (positions >= 0) & (positions <= (inputs - 1) * dilation)
    return int(np.count_nonzero(is_inside & (positions % dilation == 0)))
