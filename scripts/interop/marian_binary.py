"""Marian's binary format of models, read and written: arrays by name, float32 or in 8 bits."""

import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from scripts.interop import untrusted
from scripts.interop.portable import Arrays

VERSION = 1
FLOAT32 = 0x404
BYTES = 0x101
INT8 = 0x4101  # the integers, and then their factor
DTYPES = {FLOAT32: "<f4", BYTES: "i1"}
INT8_MAX = 127
BLOCK = 256  # bytes; the data of an array begins at a multiple
EMBEDDINGS = "Wemb"  # part of the names of the int8 matrices that are not transposed
# The names of the arrays in 8 bits. Marian's converter includes Wemb_QuantMultA, by mistake, and
# the engines expect it.
QUANTIZED = re.compile(f"_W.?$|{EMBEDDINGS}")
FACTOR = "_QuantMultA"  # ends the name of the factor of the activations that meet a matrix


class Item(NamedTuple):
    """An array of a file.

    values: float32, bytes, or the integers of a matrix in 8 bits.
    factor: a matrix in 8 bits is `values / factor`; None: not in 8 bits.
    padding: the bytes between the values and the next array. Marian's converter writes what its
        memory held; empty: zeros.
    """

    values: np.ndarray
    factor: np.float32 | None = None
    padding: bytes = b""

    @property
    def array(self) -> np.ndarray:
        """The values, in float32 if they are in 8 bits."""
        if self.factor is None:
            return self.values
        # The reader refuses infinite values and NaN.
        with np.errstate(all="ignore"):
            return self.values / self.factor


def quantize(matrix: Float[np.ndarray, "K N"]) -> Item:
    """Returns a matrix in 8 bits, with one factor: its largest number becomes 127 or -127."""
    matrix = matrix.astype(np.float32)
    largest = np.abs(matrix).max(initial=0.0)
    factor = np.float32(INT8_MAX) / (largest or np.float32(INT8_MAX))
    return Item(np.rint(matrix * factor).astype(np.int8), np.float32(factor))


def to_items(arrays: Arrays, factors: Mapping[str, float]) -> dict[str, Item]:
    """Returns float32 arrays as Marian stores them, with the factors of activations by matrix."""
    scalars = {f"{name}{FACTOR}": np.full((1, 1), factor) for name, factor in factors.items()}
    items = {}
    for name, array in (arrays | scalars).items():
        is_quantized = QUANTIZED.search(name) is not None
        items[name] = quantize(array) if is_quantized else Item(array.astype(np.float32))
    return items


def factors_in(items: Mapping[str, Item]) -> dict[str, float]:
    """Returns the factors of activations, by the name of the matrix that these meet."""
    return {
        name.removesuffix(FACTOR): float(item.array.item())
        for name, item in items.items()
        if name.endswith(FACTOR)
    }


def read(path: Path) -> dict[str, Item]:
    """Reads all arrays of a file. Raises UserError if it is damaged."""
    items = {}
    with untrusted.reading(path):
        file = untrusted.Cursor(path)
        file.take(8)  # the version

        # For each array: the lengths of name, type, shape and data. Then all names and all shapes.
        headers = file.array("<u8", [file.unsigned(8), 4]).tolist()
        names = [file.name(length) for length, _, _, _ in headers]
        shapes = [file.array("<i4", [rank]).tolist() for _, _, rank, _ in headers]
        file.take(file.unsigned(8))  # alignment

        for name, shape, (_, kind, _, size) in zip(names, shapes, headers, strict=True):
            # The data of an array may be longer than its values.
            end = file.position + size
            if kind == INT8:
                is_transposed = EMBEDDINGS not in name
                values = file.array("i1", shape[::-1] if is_transposed else shape)
                values = values.T if is_transposed else values
                (factor,) = file.array("<f4", [1])
            else:
                values = file.array(DTYPES[kind], shape)
                factor = None
            items[name] = Item(values, factor, bytes(file.take(end - file.position)))
        untrusted.check_finite(path, {name: item.array for name, item in items.items()})
    return items


def write(items: Mapping[str, Item]) -> bytes:
    """Returns the content of a file with these arrays."""
    headers = b""
    names = b""
    shapes = b""
    data = b""
    for name, item in sorted(items.items()):
        values = item.values
        kind = FLOAT32 if values.dtype == np.float32 else BYTES
        content = values.tobytes()
        if item.factor is not None:
            kind = INT8
            content = (values if EMBEDDINGS in name else values.T).tobytes()
            content += struct.pack("<f", item.factor)

        # Text is the only content without padding.
        size = 0 if kind == BYTES else -len(content) % BLOCK
        content += item.padding or bytes(size)
        headers += struct.pack("<4Q", len(name) + 1, kind, values.ndim, len(content))
        names += name.encode() + b"\0"
        shapes += struct.pack(f"<{values.ndim}i", *values.shape)
        data += content
    start = struct.pack("<2Q", VERSION, len(items)) + headers + names + shapes

    # The gap is at least one byte.
    end = len(start) + 8
    gap = (end // BLOCK + 1) * BLOCK - end
    return start + struct.pack("<Q", gap) + bytes(gap) + data
