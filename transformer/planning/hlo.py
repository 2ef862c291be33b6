"""A parser of compiled programs: the text of optimized HLO, as `Compiled.as_text()` returns it."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping

BYTES = {"f64": 8, "s64": 8, "u64": 8, "c64": 8, "f32": 4, "s32": 4, "u32": 4, "bf16": 2, "f16": 2, "s16": 2, "u16": 2}
BYTES |= {"s8": 1, "u8": 1, "pred": 1, "f8e4m3fn": 1, "f8e5m2": 1}  # other types, such as tokens, take no memory

COPIES = {"copy", "copy-start", "copy-done", "slice-start", "slice-done", "get-tuple-element", "bitcast"}

_SHAPE = re.compile(r"(\w+)\[([\d,]*)\](?:\{([^{}]*)\})?")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)")
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_CALLED = re.compile(r"(?:calls|to_apply|body|branch_computations)=(?:%?([\w.\-]+)|\{([^}]*)\})")


@dataclasses.dataclass(frozen=True)
class Shape:
    """An array type. `layout` is the text between the braces: minor-to-major order, tiles, memory space."""

    dtype: str
    dims: tuple[int, ...]
    layout: str = ""

    @property
    def bytes(self) -> int:
        """The bytes that the array occupies, with the padding of TPUs' tiles."""
        return BYTES.get(self.dtype, 0) * math.prod(self._padded())

    @property
    def memory_space(self) -> int:
        """0: the device's main memory; others, on TPUs: vector memory (1), scalar memory, semaphores."""
        space = re.search(r"S\((\d+)\)", self.layout)
        return int(space[1]) if space else 0

    def _padded(self) -> Iterator[int]:
        order, _, rest = self.layout.partition(":")
        tile = re.match(r"T\(([\d,]+)\)", rest)
        if not tile or not self.dims:
            return iter(self.dims)
        dims = [self.dims[int(axis)] for axis in order.split(",")]  # the most minor first
        sizes = reversed([int(size) for size in tile[1].split(",")])
        padded = [-(-dim // size) * size for dim, size in zip(dims, sizes, strict=False)]
        return iter(padded + dims[len(padded) :])

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a program.

    Attributes:
      attributes: the text after the operands.
      number: that of a parameter, or the value of an integer constant.
    """

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    is_root: bool = False
    number: int | None = None

    @functools.cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The arrays of the result: one, or the leaves of a tuple."""
        return parse_shapes(self.type)

    @functools.cached_property
    def called(self) -> tuple[str, ...]:
        """The names of the computations that the instruction calls; not the condition of a loop."""
        names = [one or several for one, several in _CALLED.findall(self.attributes)]
        return tuple(name.strip().lstrip("%") for names_ in names for name in names_.split(","))

    @property
    def op_name(self) -> str:
        """JAX's name of the operation, such as "jit(step)/transpose(jvp())/dot_general"; "" if it has none."""
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return found[1].replace("\\'", "'") if found else ""

    @property
    def target(self) -> str:
        """The library function of a custom call; "" for other instructions."""
        found = re.search(r'custom_call_target="([^"]*)"', self.attributes)
        return found[1] if found else ""

    def attribute(self, name: str) -> str:
        """Returns the text of NAME={text}; "" if it is absent."""
        found = re.search(rf"\b{name}=\{{([^}}]*)\}}", self.attributes)
        return found[1] if found else ""

    def integer(self, pattern: str) -> int | None:
        """Returns the integer that a pattern's group finds in the attributes."""
        found = re.search(pattern, self.attributes)
        return int(found[1]) if found else None


Computation = Mapping[str, Instruction]  # in the order of the schedule


@dataclasses.dataclass(frozen=True)
class Program:
    """The computations of a compiled program by name, and the tables that locate its instructions in the source."""

    computations: Mapping[str, Computation]
    entry: str
    tables: Mapping[str, Mapping[int, str]]

    def functions(self, instruction: Instruction) -> list[str]:
        """Returns the Python functions that made the instruction, outermost first: "FeedForward.__call__"."""
        frames, locations, names = (self.tables[name] for name in ("StackFrames", "FileLocations", "FunctionNames"))
        frame, functions = instruction.integer(r"stack_frame_id=(\d+)"), []
        while frame in frames:
            location = _field(frames[frame], "file_location_id")
            functions.append(names[_field(locations[location], "function_name_id")].strip('"'))
            parent = _field(frames[frame], "parent_frame_id") - 1  # 1 is no parent
            frame = parent if parent < frame else None
        return functions[::-1]


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Returns the arrays of a type: "(f32[2,3]{1,0}, s32[])" has two."""
    return tuple(
        Shape(dtype, tuple(int(dim) for dim in dims.split(",") if dim), layout)
        for dtype, dims, layout in _SHAPE.findall(text)
    )


def parse(text: str) -> Program:
    """Parses the text of an optimized program."""
    computations: dict[str, dict[str, Instruction]] = {}
    tables: dict[str, dict[int, str]] = {name: {} for name in _TABLES}
    current, last, table, entry = {}, None, {}, ""
    for line in text.splitlines():
        if line in tables:
            table = tables[line]
        elif head := _COMPUTATION.match(line):
            current, last = computations.setdefault(head[2], {}), None
            entry = head[2] if head[1] else entry
        elif found := _INSTRUCTION.match(line):
            last = found[2]
            current[last] = _named_by_operand(_instruction(*found.groups()), current)
        elif last is not None:  # the attributes of a Pallas kernel have line breaks
            current[last] = dataclasses.replace(current[last], attributes=f"{current[last].attributes} {line.strip()}")
        elif line[:1].isdigit():
            number, _, content = line.partition(" ")
            table[int(number)] = content
    return Program(computations, entry, tables)


def _instruction(root: str | None, name: str, type_: str, opcode: str, rest: str) -> Instruction:
    arguments, _, attributes = rest.partition(")")
    operands = tuple(re.findall(r"%([\w.\-]+)", arguments))
    number = int(arguments) if opcode in ("parameter", "constant") and arguments.isdecimal() else None
    return Instruction(name, type_, opcode, operands, attributes, root is not None, number)


def _named_by_operand(each: Instruction, computation: Computation) -> Instruction:
    """Returns a copy between memories, which the compiler has added, with the name and source of what it copies."""
    if each.opcode not in COPIES or "metadata=" in each.attributes or not each.operands:
        return each
    source = computation[each.operands[0]].attributes
    found = re.search(r"metadata=\{[^}]*\}", source)
    return dataclasses.replace(each, attributes=f"{each.attributes}, {found[0]}") if found else each


def _field(text: str, name: str) -> int:
    return int(re.search(rf"\b{name}=(\d+)", text)[1])
