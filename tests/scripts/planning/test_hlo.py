"""Programs are parsed from their text: shapes with tiles, instructions, and the functions that made
them.
"""

import pytest

from scripts.planning import hlo

TEXT = """HloModule jit_step, is_scheduled=true

FileNames
1 "step.py"

FunctionNames
1 "CompiledStep._update"
2 "Encoder.__call__"
3 "Linear.__call__"

FileLocations
1 {file_name_id=1 function_name_id=1 line=3 end_line=3 column=1 end_column=2}
2 {file_name_id=1 function_name_id=2 line=4 end_line=4 column=1 end_column=2}
3 {file_name_id=1 function_name_id=3 line=5 end_line=5 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=3 parent_frame_id=3}

%fused (param_0: f32[8,4]) -> f32[8,4] {
  %param_0 = f32[8,4]{1,0} parameter(0)
  ROOT %add.1 = f32[8,4]{1,0} add(%param_0, %param_0)
}

ENTRY %main (x: f32[8,4]) -> (f32[8,4], s32[]) {
  %x = f32[8,4]{1,0} parameter(0), metadata={op_name="state.parameters[\\'kernel\\']"}
  %pallas = f32[8,4]{1,0} custom-call(%x), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
7 }}, metadata={op_name="jit(step)/pallas_call" stack_frame_id=2}
  %loop = f32[8,4]{1,0} fusion(%pallas), kind=kLoop, calls=%fused, metadata={op_name="jit(step)/add" stack_frame_id=3}
  %count = s32[] constant(3)
  ROOT %result = (f32[8,4]{1,0}, /*index=1*/s32[]) tuple(%loop, %count)
}
"""  # noqa: E501


@pytest.fixture(scope="module")
def program() -> hlo.Program:
    return hlo.parse(TEXT)


def by_name(program: hlo.Program) -> dict[str, hlo.Instruction]:
    """Returns the instructions of the main computation."""
    return {instruction.name: instruction for instruction in program.entry.instructions}


def test_instructions_have_operands_types_and_called_computations(program):
    assert program.entry.name == "main" and set(program.computations) == {"fused", "main"}
    main = by_name(program)
    assert list(main) == ["x", "pallas", "loop", "count", "result"]
    assert main["loop"].opcode == "fusion" and main["loop"].operands == [main["pallas"]]
    assert main["loop"].called == [program.computations["fused"]]
    assert main["x"].number == 0 and main["x"].op_name == "state.parameters['kernel']"
    assert main["result"].is_root and [str(shape) for shape in main["result"].shapes] == [
        "f32[8,4]",
        "s32[]",
    ]


def test_attributes_with_line_breaks_belong_to_their_instruction(program):
    pallas = by_name(program)["pallas"]
    assert (pallas.target, pallas.op_name) == ("tpu_custom_call", "jit(step)/pallas_call")
    assert len(program.tables["StackFrames"]) == 3  # and the line with a 7 is no stack frame


def test_functions_are_found_by_stack_frames(program):
    main = by_name(program)
    assert main["loop"].functions == ["CompiledStep._update", "Encoder.__call__", "Linear.__call__"]
    assert main["count"].functions == []


@pytest.mark.parametrize(
    ("text", "size", "space"),
    [
        ("f32[]", 4, 0),
        ("bf16[3,5]{1,0}", 30, 0),
        ("pred[7]{0}", 7, 0),
        ("f32[24,32]{1,0:T(8,128)}", 24 * 128 * 4, 0),  # the minor dimension fills a tile of 128
        # 32 is minor, then 30
        ("bf16[24,4,32,30]{2,3,1,0:T(8,128)(2,1)S(1)}", 24 * 4 * 32 * 128 * 2, 1),
        ("f32[4000]{0:T(1024)}", 4096 * 4, 0),
        ("token[]", 0, 0),
    ],
)
def test_arrays_take_the_bytes_of_their_tiles(text, size, space):
    (shape,) = hlo.parse_shapes(text)
    assert (shape.bytes, shape.memory_space) == (size, space)
