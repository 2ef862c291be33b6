"""FLOPs of products, against numbers worked out by hand."""

import jax
import jax.numpy as jnp
import pytest

from scripts.planning import hlo, instructions

ENTRY = """
%inner (a: bf16[16,8], b: bf16[8,4]) -> f32[16,4] {{
  %a = bf16[16,8]{{1,0}} parameter(0)
  %b = bf16[8,4]{{1,0}} parameter(1)
  ROOT %dot.1 = f32[16,4]{{1,0}} dot(%a, %b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}

ENTRY %main (x: {left}, y: {right}) -> f32[] {{
  %x = {left} parameter(0)
  %y = {right} parameter(1)
  %product = {line}
  ROOT %zero = f32[] constant(0)
}}
"""


def flops(left: str, right: str, line: str) -> instructions.Flops:
    program = hlo.parse(ENTRY.format(left=left, right=right, line=line))
    return instructions.flops(program.entry.instructions[2])


@pytest.mark.parametrize(
    ("left", "right", "line", "expected"),
    [
        (
            "bf16[16,8]{1,0}",
            "bf16[8,4]{1,0}",
            "f32[16,4]{1,0} dot(%x, %y), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
            (2 * 16 * 8 * 4, 0),
        ),
        (
            "f32[6,16,8]{2,1,0}",
            "f32[6,4,8]{2,1,0}",
            "f32[6,16,4]{2,1,0} dot(%x, %y), lhs_batch_dims={0}, lhs_contracting_dims={2}, "
            "rhs_batch_dims={0}, "
            "rhs_contracting_dims={2}",
            (6 * 2 * 16 * 8 * 4, 6 * 2 * 16 * 8 * 4),
        ),
        (
            "bf16[16,8]{1,0}",
            "bf16[8,4]{1,0}",
            "f32[16,4]{1,0} fusion(%x, %y), kind=kCustom, calls=%inner",
            (2 * 16 * 8 * 4, 0),
        ),
        (
            "bf16[16,8]{1,0}",
            "bf16[8,4]{1,0}",
            "(bf16[16,4]{1,0}, s8[99]{0}) custom-call(%x, %y), "
            'custom_call_target="__cublas$lt$matmul", '
            'backend_config={"gemm_backend_config":{"dot_dimension_numbers":'
            '{"lhs_contracting_dimensions":["1"]}}}',
            (2 * 16 * 8 * 4, 0),
        ),
        (  # q (B 2, T 10, H 4, d 8), weights (B H T S) with S 12; backward has five products
            "bf16[2,10,4,8]{3,2,1,0}",
            "bf16[2,12,4,8]{3,2,1,0}",
            "(bf16[2,4,10,8]{3,1,2,0}) custom-call(%x, %y), "
            'custom_call_target="__cudnn$fmhaSoftmaxBackward", '
            'backend_config={"cudnn_fmha_backend_config": {"intermediate_tensor_shape": '
            '{"element_type": "BF16", '
            '"dimensions": ["2", "4", "10", "12"]}}}',
            (5 * 2 * 2 * 4 * 10 * 12 * 8, 0),
        ),
        ("bf16[16,8]{1,0}", "bf16[8,4]{1,0}", "bf16[16,8]{1,0} add(%x, %x)", (0, 0)),
        (  # as TPUs do: (24, 32, 256) x (256, 64)
            "bf16[24,32,256]{2,1,0}",
            "bf16[256,64,1]{1,0,2}",
            "bf16[24,32,64]{2,1,0} convolution(%x, %y), window={size=1}, dim_labels=0bf_io0->0bf",
            (2 * 24 * 32 * 256 * 64, 0),
        ),
        # batched by a spatial axis: 24 products of (32, 64) x (64, 16), on the diagonal of the
        # window
        (
            "bf16[24,32,64]{2,1,0}",
            "bf16[24,64,16]{2,1,0}",
            "bf16[24,32,16]{2,1,0} convolution(%x, %y), window={size=24 stride=23 lhs_dilate=24}, "
            "dim_labels=0bf_0io->0bf",
            (24 * 2 * 32 * 64 * 16, 0),
        ),
        (  # a sum over a spatial axis: (24 32, 256)^T x (24 32, 64)
            "f32[24,32,256]{2,1,0}",
            "f32[24,32,64]{2,1,0}",
            "f32[1,256,64]{2,1,0} convolution(%x, %y), window={size=24}, dim_labels=0fb_0io->0bf",
            (2 * 24 * 32 * 256 * 64, 2 * 24 * 32 * 256 * 64),
        ),
        (  # padding counts nothing: of 4 x 3 pairs of output and kernel positions, 2 read outside
            "bf16[4,5,6]{2,1,0}",
            "bf16[3,6,7]{2,1,0}",
            "bf16[4,5,7]{2,1,0} convolution(%x, %y), window={size=3 pad=1_1}, "
            "dim_labels=0bf_0io->0bf",
            (2 * 10 * 5 * 6 * 7, 0),
        ),
    ],
)
def test_flops_of_products(left, right, line, expected):
    assert flops(left, right, line) == expected


def test_the_products_of_a_compiled_program_are_counted():
    def loss(w, x):
        return jnp.sum((x @ w) ** 2)

    compiled = jax.jit(jax.grad(loss)).lower(jnp.ones((64, 32)), jnp.ones((128, 64))).compile()
    entry = hlo.parse(compiled.as_text()).entry
    total = sum(instructions.flops(instruction).total for instruction in entry.instructions)
    assert total == 2 * 2 * 128 * 64 * 32


def test_a_gather_from_padded_rows_reads_what_it_returns():
    program = hlo.parse("""
%inner (x: f32[8,1000], i: s32[8,1]) -> f32[8,64] {
  %x = f32[8,1000]{1,0} parameter(0)
  %i = s32[8,1]{1,0} parameter(1)
  %low = f32[] constant(-inf)
  %padded = f32[8,1024]{1,0} pad(%x, %low), padding=0_0x0_24
  ROOT %found = f32[8,64]{1,0} gather(%padded, %i), slice_sizes={1,64}
}

ENTRY %main (x: f32[8,1000], i: s32[8,1]) -> f32[8,64] {
  %x = f32[8,1000]{1,0} parameter(0)
  %i = s32[8,1]{1,0} parameter(1)
  ROOT %found = f32[8,64]{1,0} fusion(%x, %i), kind=kLoop, calls=%inner
}
""")
    read_and_written = 2 * 4 * 8 * 64
    indices = 4 * 8
    assert instructions.bytes_moved(program.entry.instructions[2]) == read_and_written + indices
