"""Kernels, collectives and time of small programs, against numbers worked out by hand."""

import pytest

from scripts.planning import hlo, roofline
from scripts.planning.devices import parse_target
from scripts.planning.instructions import Collective

GPU = """
%region (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%sliced (stack: f32[6,1000,1000], i: s32[]) -> f32[1000,1000] {
  %stack = f32[6,1000,1000]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %slice = f32[1,1000,1000]{2,1,0} dynamic-slice(%stack, %i, %i, %i), dynamic_slice_sizes={1,1000,1000}
  ROOT %view = f32[1000,1000]{1,0} bitcast(%slice)
}

%updated (stack: f32[6,1000,1000], part: f32[1,1000,1000], i: s32[]) -> f32[6,1000,1000] {
  %stack = f32[6,1000,1000]{2,1,0} parameter(0)
  %part = f32[1,1000,1000]{2,1,0} parameter(1)
  %i = s32[] parameter(2)
  ROOT %update = f32[6,1000,1000]{2,1,0} dynamic-update-slice(%stack, %part, %i, %i, %i)
}

%product (left: bf16[4096,1024], right: bf16[1024,4096]) -> bf16[4096,4096] {
  %left = bf16[4096,1024]{1,0} parameter(0)
  %right = bf16[1024,4096]{1,0} parameter(1)
  ROOT %dot = bf16[4096,4096]{1,0} dot(%left, %right), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%body (carry: (s32[], f32[6,1000,1000])) -> (s32[], f32[6,1000,1000]) {
  %carry = (s32[], f32[6,1000,1000]{2,1,0}) parameter(0)
  %step = s32[] get-tuple-element(%carry), index=0
  %rows = f32[6,1000,1000]{2,1,0} get-tuple-element(%carry), index=1
  %row = f32[1000,1000]{1,0} fusion(%rows, %step), kind=kLoop, calls=%sliced
  %part = f32[1,1000,1000]{2,1,0} bitcast(%row)
  %next = f32[6,1000,1000]{2,1,0} fusion(%rows, %part, %step), kind=kLoop, calls=%updated
  ROOT %out = (s32[], f32[6,1000,1000]{2,1,0}) tuple(%step, %next)
}

%condition (carry: (s32[], f32[6,1000,1000])) -> pred[] {
  %carry = (s32[], f32[6,1000,1000]{2,1,0}) parameter(0)
  ROOT %true = pred[] constant(true)
}

ENTRY %main (x: bf16[4096,1024], w: bf16[1024,4096], rows: f32[6,1000,1000], g: f32[1000]) -> f32[8000] {
  %x = bf16[4096,1024]{1,0} parameter(0)
  %w = bf16[1024,4096]{1,0} parameter(1)
  %rows = f32[6,1000,1000]{2,1,0} parameter(2)
  %g = f32[1000]{0} parameter(3)
  %zero = s32[] constant(0)
  %y = bf16[4096,4096]{1,0} fusion(%x, %w), kind=kCustom, calls=%product
  %z = bf16[4096,4096]{1,0} fusion(%x, %w), kind=kCustom, calls=%product
  %carry = (s32[], f32[6,1000,1000]{2,1,0}) tuple(%zero, %rows)
  %loop = (s32[], f32[6,1000,1000]{2,1,0}) while(%carry), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"6"}}
  %gather = (f32[1000]{0}, f32[8000]{0}) all-gather-start(%g), replica_groups=[1,8]<=[8], dimensions={0}
  %all = f32[8000]{0} all-gather-done(%gather)
  %both = bf16[4096,4096]{1,0} add(%y, %z)
  ROOT %result = f32[8000]{0} copy(%all)
}
"""  # noqa: E501

PRODUCT = 2 * 4096 * 1024 * 4096
# bytes of a product: two operands and the result in bfloat16
MOVED = 2 * (2 * 4096 * 1024 + 4096 * 4096)


@pytest.fixture(scope="module")
def program() -> hlo.Program:
    return hlo.parse(GPU)


def by_name(program: hlo.Program) -> dict[str, roofline.Kernel]:
    return {kernel.instruction.name: kernel for kernel in roofline.kernels(program.entry)}


def test_kernels_of_loops_count_as_often_as_they_run(program):
    launched = by_name(program)
    assert list(launched) == ["y", "z", "row", "next", "gather", "both", "result"]
    assert [kernel.times for kernel in launched.values()] == [1, 1, 6, 6, 1, 1, 1]
    assert launched["y"].flops == (PRODUCT, 0) and launched["y"].bytes == MOVED


def test_loops_of_tpu_programs_run_until_their_counter_meets_the_constant_of_the_condition():
    condition = "ROOT %true = pred[] constant(true)"
    compared = """%count = s32[] constant(14)
  %step = s32[] get-tuple-element(%carry), index=0
  ROOT %less = pred[] compare(%step, %count), direction=LT"""
    unknown = GPU.replace(', backend_config={"known_trip_count":{"n":"6"}}', "")
    for text, times in ((unknown.replace(condition, compared), 14), (unknown, 1)):
        launched = by_name(hlo.parse(text))
        assert launched["row"].times == launched["next"].times == times and launched["y"].times == 1


def test_slices_count_instead_of_the_arrays_they_are_of(program):
    launched, matrix, index = by_name(program), 4 * 1000 * 1000, 4
    assert launched["row"].bytes == 2 * matrix + index  # one of six is read and written
    assert launched["next"].bytes == 2 * matrix + index  # and one is updated


def test_what_a_ring_sends(program):
    (collective,) = (
        kernel.collective for kernel in roofline.kernels(program.entry) if kernel.collective
    )
    assert collective == Collective("all-gather", 8, 4000) and collective.wire_bytes == 7 * 4000


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("replica_groups={{0,1,2,3},{4,5,6,7}}", 4),
        ("replica_groups=[2,4]<=[8]", 4),
        ("replica_groups=mesh['data'=2,'fsdp'=4] {'fsdp'}", 4),
        ("replica_groups=mesh['data'=2,'fsdp'=4] {'data','fsdp'}", 8),
        ("source_target_pairs={{0,1},{1,0}}", 2),
        ("replica_groups={{0}}", 1),
    ],
)
def test_sizes_of_groups(text, size):
    program = hlo.parse(
        f"ENTRY %main () -> f32[] {{\n  ROOT %sum = f32[] all-reduce(), {text}\n}}\n"
    )
    assert program.entry.instructions[0].group_size == size


@pytest.mark.parametrize(
    ("line", "kind", "sent"),
    [
        ("all-reduce(%x), replica_groups=[1,4]<=[4], to_apply=%region", "all-reduce", 2 * 3 / 4),
        (
            "reduce-scatter(%x), replica_groups=[1,4]<=[4], to_apply=%region",
            "reduce-scatter",
            3 / 4,
        ),
        ("all-to-all(%x), replica_groups=[1,4]<=[4]", "all-to-all", 3 / 4),
        ("collective-permute(%x), source_target_pairs={{0,1},{1,0}}", "collective-permute", 1),
        ("fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1", "reduce-scatter", 3 / 4),
        ("all-reduce(%x), replica_groups=[4,1]<=[4], to_apply=%region", None, 0),  # over one device
        # carries on what another starts
        ("fusion(%x), kind=kOutput, calls=%async_collective_fusion.1", None, 0),
    ],
)
def test_bytes_over_the_wire(line, kind, sent):
    inner = "f32[100]{0} all-reduce(%p), replica_groups=[1,4]<=[4], to_apply=%region"
    called = "".join(
        f"%{name} (p: f32[100]) -> f32[100] "
        f"{{\n  %p = f32[100]{{0}} parameter(0)\n  ROOT %r = {inner}\n}}\n\n"
        for name in ("all-reduce-scatter.1", "async_collective_fusion.1")
    )
    text = f"{called}ENTRY %main (x: f32[100]) -> f32[100] {{\n  %x = f32[100]{{0}} parameter(0)\n"
    (kernel,) = roofline.kernels(hlo.parse(f"{text}  ROOT %y = f32[100]{{0}} {line}\n}}\n").entry)
    assert (kernel.collective and kernel.collective.kind) == kind
    assert (kernel.collective.wire_bytes if kernel.collective else 0) == sent * 400


def test_the_roofline_of_a_gpu(program):
    target = parse_target("h100:8")
    cost = roofline.cost([(program, 1)], target)
    launch, bandwidth, peak = 2.5e-6, 3.352e12, 989.4e12
    product = max(MOVED / bandwidth, PRODUCT / peak) + launch
    loop = 6 * 2 * ((2 * 4e6 + 4) / bandwidth + launch)
    # the sum and the copy; the gather is async
    rest = (3 * 2 * 4096 * 4096 + 2 * 4 * 8000) / bandwidth + 2 * launch
    assert cost.kernel_seconds == pytest.approx(2 * product + loop + rest)
    # so the product is bound by FLOPs, and the loop by bytes
    assert PRODUCT / peak > MOVED / bandwidth
    assert cost.wire_seconds == 7 * 4000 / 450e9
    assert cost.seconds == cost.kernel_seconds
    assert (cost.kernels, cost.flops, cost.float32_flops) == (17, 2 * PRODUCT, 0)
    costliest = cost.costliest_kernels
    # those of one name together
    assert (costliest[0].launches, costliest[0].flops) == (2, 2 * PRODUCT)
    # it has the gather too
    assert sum(kernels.seconds for kernels in costliest) > cost.kernel_seconds


def test_float32_products_have_their_own_peak():
    text = GPU.replace("bf16", "f32")
    target = parse_target("h100")
    cost = roofline.cost([(hlo.parse(text), 1)], target)
    assert cost.float32_flops == cost.flops == 2 * PRODUCT
    product = next(kernels for kernels in cost.costliest_kernels if kernels.flops)
    assert product.seconds == pytest.approx(2 * (PRODUCT / 494.7e12 + 2.5e-6))


def test_programs_count_as_often_as_they_run(program):
    target = parse_target("h100:8")
    once, thrice = (roofline.cost([(program, times)], target) for times in (1, 3))
    assert thrice.seconds == pytest.approx(3 * once.seconds)
    assert thrice.collectives[0].wire_bytes == 3 * once.collectives[0].wire_bytes


def test_of_a_tpu_only_main_memory_counts():
    text = """
ENTRY %main (x: f32[1024,128]) -> f32[1024,128] {
  %x = f32[1024,128]{1,0:T(8,128)} parameter(0)
  %key = u32[1]{0:T(128)S(6)} constant({7})
  %scalar = u32[1]{0:T(128)S(6)} add(%key, %key)
  %copy-start = (f32[1024,128]{1,0:T(8,128)S(1)}, f32[1024,128]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%x)
  %near = f32[1024,128]{1,0:T(8,128)S(1)} copy-done(%copy-start)
  %sum = f32[1024,128]{1,0:T(8,128)S(1)} add(%near, %near)
  ROOT %back = f32[1024,128]{1,0:T(8,128)} copy(%sum)
}
"""  # noqa: E501
    target = parse_target("v5e:2x2")
    cost = roofline.cost([(hlo.parse(text), 1)], target)
    size = 4 * 1024 * 128
    # in by a copy beside the kernels, out by another
    assert cost.kernels == 3 and cost.bytes == 2 * size
    assert (
        cost.kernel_seconds == size / 819e9
        and cost.seconds == cost.memory_seconds == 2 * size / 819e9
    )


def test_slices_that_a_tpu_fetches_count_instead_of_the_array():
    text = """
ENTRY %main (x: f32[1024,128]) -> f32[256,128] {
  %x = f32[1024,128]{1,0:T(8,128)} parameter(0)
  %slice-start = ((f32[1024,128]{1,0:T(8,128)}), f32[256,128]{1,0:T(8,128)S(1)}, s32[]{:S(2)}) slice-start(%x), slice={[0:256], [0:128]}
  ROOT %part = f32[256,128]{1,0:T(8,128)S(1)} slice-done(%slice-start)
}
"""  # noqa: E501
    program = hlo.parse(text)
    (fetch,) = roofline.kernels(program.entry)
    assert fetch.bytes == 4 * 256 * 128 and fetch.is_async


def test_names_are_those_of_modules():
    numbers = range(1, len(FUNCTIONS) + 1)
    lines = ["FunctionNames", *(f'{i} "{name}"' for i, name in enumerate(FUNCTIONS, 1))]
    lines += [
        "FileLocations",
        *(f"{i} {{file_name_id=1 function_name_id={i} line=1}}" for i in numbers),
    ]
    lines += [
        "StackFrames",
        *(f"{i} {{file_location_id={i} parent_frame_id={i}}}" for i in numbers),
    ]

    def name(frame: int, op_name: str) -> str:
        metadata = f', metadata={{op_name="{op_name}" stack_frame_id={frame}}}'
        main = ["ENTRY %main () -> f32[] {", f"  ROOT %a = f32[] custom-call(){metadata}", "}"]
        return roofline.describe(hlo.parse("\n".join([*lines, *main])).entry.instructions[0])

    backward = "jit(_update)/transpose(jvp())/dot_general"
    assert name(len(FUNCTIONS), backward) == "Encoder/FeedForward/Linear dot_general (backward)"
    assert name(2, "jit(_update)/add") == "CompiledStep._update add"
    assert name(99, "jit(_update)/add") == "add"


FUNCTIONS = [
    "CompiledStep._update",
    "compute_gradients.<locals>.loss_of",
    "ProjectedLoss.__call__",
    "Encoder.__call__",
]
FUNCTIONS += [
    "<lambda>",
    "Layer.__call__",
    "SublayerConnection.__call__",
    "FeedForward.__call__",
    "Linear.__call__",
]
