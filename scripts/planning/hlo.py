"""Compiled programs, parsed from the text of optimized HLO that `as_text()` of an executable
returns.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_SHAPE = re.compile(r"(\w+)\[([\d,]*)\](?:\{([^{}]*)\})?")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)")
_TABLES = ("FunctionNames", "FileLocations", "StackFrames")
_CALLED = re.compile(r"(?:calls|to_apply|body)=%?([\w.\-]+)")


class Shape(NamedTuple):
    """An array type.

    `layout` is the text between the braces: minor-to-major order, tiles, memory space.
    """

    dtype: str
    dims: tuple[int, ...]
    layout: str

    @property
    def bytes(self) -> int:
        """The bytes that the array occupies, with the padding of TPUs' tiles."""
        dims, (order, _, rest) = self.dims, self.layout.partition(":")
        if dims and (tile := re.match(r"T\(([\d,]+)\)", rest)):
            dims = [dims[axis] for axis in integers(order)]  # the most minor first
            for axis, size in zip(range(len(dims)), reversed(integers(tile[1])), strict=False):
                dims[axis] = -(-dims[axis] // size) * size
        bits = re.search(r"\d+", self.dtype.replace("pred", "u8"))
        return int(bits[0]) // 8 * math.prod(dims) if bits else 0  # tokens take no memory

    @property
    def memory_space(self) -> int:
        """0: the device's main memory; others, on TPUs: vector memory (1), scalar memory,
        semaphores.
        """
        space = re.search(r"S\((\d+)\)", self.layout)
        return int(space[1]) if space else 0

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


class Computation(NamedTuple):
    """A function of a program. The instructions are in the order in which they run."""

    name: str
    instructions: list["Instruction"]


@dataclasses.dataclass(eq=False)
class Instruction:
    """One line of a program.

    Attributes:
      shapes: the arrays of the result: one, or the leaves of a tuple.
      attributes: the text after the operands.
      number: that of a parameter, or the value of an integer constant.
    """

    program: "Program"
    name: str
    shapes: Sequence[Shape]
    opcode: str
    operands: Sequence["Instruction"]
    attributes: str
    is_root: bool
    number: int | None

    @functools.cached_property
    def called(self) -> list[Computation]:
        """The computations that the instruction calls; not the condition of a loop."""
        return [self.program.computations[name] for name in _CALLED.findall(self.attributes)]

    @property
    def op_name(self) -> str:
        """JAX's name of the operation, such as "jit(step)/transpose(jvp())/dot_general"; "" if it
        has none.
        """
        return self.attribute(r'op_name="([^"]*)"').replace("\\'", "'")

    @property
    def target(self) -> str:
        """The library function of a custom call; "" for other instructions."""
        return self.attribute(r'custom_call_target="([^"]*)"')

    @property
    def trip_count(self) -> int:
        """The number of times that the body of a loop runs; 1 if the program does not tell."""
        if known := self.attribute(r'known_trip_count":\{"n":"(\d+)"'):
            return int(known)
        # Programs for TPUs lack that field; there the condition of a scan compares its counter with
        # a constant.
        condition = self.program.computations[self.attribute(r"condition=%?([\w.\-]+)")]
        constants = [inner.number for inner in condition.instructions if inner.opcode == "constant"]
        return (constants[0] if len(constants) == 1 else None) or 1

    @property
    def group_size(self) -> int:
        """The number of devices in a group of a collective, from the three forms of
        `replica_groups`.
        """
        if axes := self.attribute(r"replica_groups=mesh\[[^\]]*\] ?\{([^}]*)\}"):
            sizes = dict(re.findall(r"'(\w+)'=(\d+)", self.attributes))
            return math.prod(int(sizes[name]) for name in re.findall(r"'(\w+)'", axes))
        if size := self.attribute(r"replica_groups=\[\d+,(\d+)\]"):
            return int(size)
        if group := self.attribute(r"replica_groups=\{\{([\d,]*)\}"):
            return len(integers(group))
        return 2 if "source_target_pairs" in self.attributes else 1

    @property
    def functions(self) -> list[str]:
        """The Python functions that made the instruction, outermost first: "FeedForward.__call__"."""
        tables = self.program.tables
        frames = tables["StackFrames"]
        locations = tables["FileLocations"]
        names = tables["FunctionNames"]
        frame = int(self.attribute(r"stack_frame_id=(\d+)") or 0)
        functions = []
        while frame in frames:
            location = locations[_field(frames[frame], "file_location_id")]
            functions.append(names[_field(location, "function_name_id")].strip('"'))
            parent = _field(frames[frame], "parent_frame_id") - 1  # 1 is no parent
            frame = parent if parent < frame else 0
        return functions[::-1]

    def attribute(self, pattern: str) -> str:
        """Returns what the pattern's group matches in the attributes; "" if nothing does."""
        match = re.search(pattern, self.attributes)
        return match[1] if match else ""


@dataclasses.dataclass
class Program:
    """The computations of a compiled program by name, and the tables that locate its instructions
    in the source.
    """

    computations: dict[str, Computation]
    tables: Mapping[str, dict[int, str]]
    entry: Computation | None = None


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Returns the arrays of a type: "(f32[2,3]{1,0}, s32[])" has two."""
    return tuple(
        Shape(dtype, tuple(integers(dims)), layout) for dtype, dims, layout in _SHAPE.findall(text)
    )


def parse(text: str) -> Program:
    """Parses the text of an optimized program."""
    program = Program({}, {name: {} for name in _TABLES})
    by_name = {}  # of the current computation
    table, last = {}, None  # the first table, of file names, is dropped
    for line in text.splitlines():
        if line in program.tables:
            table = program.tables[line]
        elif head := _COMPUTATION.match(line):
            computation = program.computations[head[2]] = Computation(head[2], [])
            by_name = {}
            last = None
            program.entry = computation if head[1] else program.entry
        elif match := _INSTRUCTION.match(line):
            last = by_name[match[2]] = _instruction(program, by_name, match)
            computation.instructions.append(last)
        elif last is not None:  # the attributes of a Pallas kernel have line breaks
            last.attributes += f" {line.strip()}"
        elif line[:1].isdigit():
            number, _, content = line.partition(" ")
            table[int(number)] = content
    return program


def _instruction(
    program: Program, by_name: Mapping[str, Instruction], match: re.Match
) -> Instruction:
    root, name, result, opcode, rest = match.groups()
    arguments, _, attributes = rest.partition(")")
    operands = [by_name[operand] for operand in re.findall(r"%([\w.\-]+)", arguments)]
    number = (
        int(arguments) if opcode in ("parameter", "constant") and arguments.isdecimal() else None
    )
    return Instruction(
        program, name, parse_shapes(result), opcode, operands, attributes, root is not None, number
    )


def _field(text: str, name: str) -> int:
    return int(re.search(rf"\b{name}=(\d+)", text)[1])


def integers(text: str) -> list[int]:
    """Returns the numbers in a text, such as the dimensions "8,4"."""
    return [int(digits) for digits in re.findall(r"\d+", text)]
