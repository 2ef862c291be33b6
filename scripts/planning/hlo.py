"""A parser of compiled programs: of the optimized HLO that `as_text()` of an executable returns."""

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
        dims = self.dims
        order, _, rest = self.layout.partition(":")
        tile = re.match(r"T\(([\d,]+)\)", rest)
        if dims and tile:
            # The tile pads the most minor dimensions.
            dims = [dims[axis] for axis in integers(order)]
            tile_sizes = reversed(integers(tile[1]))
            for axis, size in zip(range(len(dims)), tile_sizes, strict=False):
                dims[axis] = -(-dims[axis] // size) * size

        # The width is in the name of the type, such as bf16 or s32; a pred takes a byte.
        bits = re.search(r"\d+", self.dtype.replace("pred", "u8"))
        if bits is None:  # a token, which takes no memory
            return 0
        return int(bits[0]) // 8 * math.prod(dims)

    @property
    def memory_space(self) -> int:
        """0 for main memory. TPUs also have vector memory (1), scalar memory and semaphores."""
        space = re.search(r"S\((\d+)\)", self.layout)
        return int(space[1]) if space else 0

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


class Computation(NamedTuple):
    """A function of a program, with its instructions in the order of execution."""

    name: str
    instructions: list["Instruction"]


@dataclasses.dataclass(eq=False)
class Instruction:
    """One line of a program.

    Attributes:
      shapes: the arrays of the result: one, or the leaves of a tuple.
      attributes: the text after the operands.
      number: the number of a parameter, or the value of an integer constant.
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
        """The computations that the instruction calls, without the condition of a loop."""
        return [self.program.computations[name] for name in _CALLED.findall(self.attributes)]

    @property
    def op_name(self) -> str:
        """JAX's name of the operation: "jit(step)/transpose(jvp())/dot_general"; "" without one."""
        return self.attribute(r'op_name="([^"]*)"').replace("\\'", "'")

    @property
    def target(self) -> str:
        """The library function of a custom call; "" for other instructions."""
        return self.attribute(r'custom_call_target="([^"]*)"')

    @property
    def trip_count(self) -> int:
        """The number of iterations of a loop; 1 if the program does not state it."""
        count = self.attribute(r'known_trip_count":\{"n":"(\d+)"')
        if count:
            return int(count)
        # Programs for TPUs lack that field. There the condition of a scan compares its counter with
        # a constant.
        condition = self.program.computations[self.attribute(r"condition=%?([\w.\-]+)")]
        constants = [inner.number for inner in condition.instructions if inner.opcode == "constant"]
        if len(constants) != 1:
            return 1
        return constants[0] or 1

    @property
    def group_size(self) -> int:
        """The number of devices that take part in one group of a collective."""
        # The attribute `replica_groups` has three forms: axes of a mesh, a shape, or a list.
        axes = self.attribute(r"replica_groups=mesh\[[^\]]*\] ?\{([^}]*)\}")
        if axes:
            sizes = dict(re.findall(r"'(\w+)'=(\d+)", self.attributes))
            return math.prod(int(sizes[name]) for name in re.findall(r"'(\w+)'", axes))
        size = self.attribute(r"replica_groups=\[\d+,(\d+)\]")
        if size:
            return int(size)
        group = self.attribute(r"replica_groups=\{\{([\d,]*)\}")
        if group:
            return len(integers(group))
        return 2 if "source_target_pairs" in self.attributes else 1

    @property
    def functions(self) -> list[str]:
        """The Python functions, such as "Linear.__call__", that made this, outermost first."""
        # A frame has a location and a parent frame; a location has the name of a function.
        tables = self.program.tables
        frames = tables["StackFrames"]
        locations = tables["FileLocations"]
        names = tables["FunctionNames"]
        frame = int(self.attribute(r"stack_frame_id=(\d+)") or 0)

        functions = []
        while frame in frames:
            location = locations[_field(frames[frame], "file_location_id")]
            functions.append(names[_field(location, "function_name_id")].strip('"'))
            # Frames count from 1, but 1 as a parent means none, and 2 the first frame.
            parent = _field(frames[frame], "parent_frame_id") - 1
            frame = parent if parent < frame else 0
        return functions[::-1]

    def attribute(self, pattern: str) -> str:
        """Returns the text of the pattern's group in the attributes; "" without a match."""
        match = re.search(pattern, self.attributes)
        return match[1] if match else ""


@dataclasses.dataclass
class Program:
    """A compiled program.

    Attributes:
      computations: by name.
      tables: the tables that locate instructions in the source, as lines by number.
      entry: the computation that runs first.
    """

    computations: dict[str, Computation]
    tables: Mapping[str, dict[int, str]]
    entry: Computation | None = None


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Returns the arrays of a type, such as the two arrays of "(f32[2,3]{1,0}, s32[])"."""
    return tuple(
        Shape(dtype, tuple(integers(dims)), layout) for dtype, dims, layout in _SHAPE.findall(text)
    )


def parse(text: str) -> Program:
    """Parses the text of an optimized program."""
    program = Program({}, {name: {} for name in _TABLES})
    table = {}  # the current table; the first one, of file names, is dropped
    by_name = {}  # the instructions of the current computation
    instruction = None
    for line in text.splitlines():
        # The text has tables, then computations. An instruction follows all of its operands.
        head = _COMPUTATION.match(line)
        match = _INSTRUCTION.match(line)
        if line in program.tables:
            table = program.tables[line]
        elif head:
            computation = Computation(head[2], [])
            program.computations[head[2]] = computation
            by_name = {}
            instruction = None
            if head[1]:
                program.entry = computation
        elif match:
            instruction = _parse_instruction(program, by_name, match)
            by_name[instruction.name] = instruction
            computation.instructions.append(instruction)
        elif instruction is not None:  # the attributes of a Pallas kernel have line breaks
            instruction.attributes += f" {line.strip()}"
        elif line[:1].isdigit():
            number, _, content = line.partition(" ")
            table[int(number)] = content
    return program


def _parse_instruction(
    program: Program, by_name: Mapping[str, Instruction], match: re.Match
) -> Instruction:
    # An instruction has the form: ROOT name = type opcode(operands), attributes.
    root, name, result, opcode, rest = match.groups()
    arguments, _, attributes = rest.partition(")")
    operands = [by_name[operand] for operand in re.findall(r"%([\w.\-]+)", arguments)]
    number = None
    if opcode in ("parameter", "constant") and arguments.isdecimal():
        number = int(arguments)
    shapes = parse_shapes(result)
    return Instruction(
        program, name, shapes, opcode, operands, attributes, root is not None, number
    )


def _field(text: str, name: str) -> int:
    return int(re.search(rf"\b{name}=(\d+)", text)[1])


def integers(text: str) -> list[int]:
    """Returns the numbers in a text, such as the dimensions "8,4"."""
    return [int(digits) for digits in re.findall(r"\d+", text)]
