"""Products in the form for CPUs equal the plain kernels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from transformer.model import kernels
from transformer.model.linear import Linear

SHAPES = [(1, 1, 1), (3, 5, 7), (64, 512, 48), (130, 33, 257), (1, 512, 2048)]
# A sum of K products of bfloat16 numbers is exact up to the rounding of float32; a result in bfloat16 has 8 bits.
TOLERANCE = {"float32": 1e-5, "bfloat16": 2**-8}


@pytest.mark.first_case
@pytest.mark.parametrize("size", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_products_equal_those_in_float64(size, dtype, platform, monkeypatch):
    monkeypatch.setattr(kernels, "target_platform", lambda: platform)
    m, k, n = size
    random = np.random.default_rng(0)
    x, w = (jnp.asarray(random.normal(size=shape), dtype) for shape in ((m, k), (k, n)))
    exact_x, exact_w = (np.asarray(array, np.float64) for array in (x, w))
    # XLA for GPUs multiplies a single row by a matrix without the matrix units and rounds the products too.
    rounding = TOLERANCE[dtype] * (2 if m == 1 and jax.default_backend() == "gpu" else 1)
    tolerance = {"rtol": rounding, "atol": rounding * np.sqrt(k)}

    y = jax.jit(lambda x, w: kernels.product(x, w, jnp.dtype(dtype)))(x, w)
    assert y.dtype == dtype
    np.testing.assert_allclose(np.asarray(y, np.float64), exact_x @ exact_w, **tolerance)
    y = jax.jit(lambda x, w: kernels.product_with_transpose(x, w.T, jnp.dtype(dtype)))(x, w)
    np.testing.assert_allclose(np.asarray(y, np.float64), exact_x @ exact_w, **tolerance)
    y = jax.jit(lambda x, w: kernels.transposed_product(x.T, w))(x, w)
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(np.asarray(y, np.float64), exact_x @ exact_w, rtol=1e-5, atol=1e-5 * np.sqrt(k))


@pytest.mark.parametrize("rows", [4, 64, 65])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_transposed_kernel_gives_the_same_linear_map(rows, dtype):
    linear = Linear(96, 48, dtype=dtype, rngs=nnx.Rngs(0))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(rows, 96)), dtype)
    expected, kernel = linear(x), linear.kernel[...]
    linear.kernel = nnx.Param(kernels.decoding_weight(kernel, jnp.dtype(dtype)))
    np.testing.assert_array_equal(linear.transposed_kernel, kernel.T.astype(dtype))
    y, tolerance = jax.jit(linear)(x), TOLERANCE[dtype]
    assert y.dtype == expected.dtype and y.shape == expected.shape
    np.testing.assert_allclose(y.astype(np.float32), expected.astype(np.float32), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("rows", "is_turned"), [(64, True), (65, False)])
def test_few_rows_are_the_right_operand_of_a_float32_product(rows, is_turned, monkeypatch):
    monkeypatch.setattr(kernels, "is_for_one_cpu", lambda: True)
    x, w = jnp.zeros((rows, 32)), jnp.zeros((48, 32))
    text = str(jax.make_jaxpr(lambda x, w: kernels.product_with_transpose(x, w, jnp.dtype("float32")))(x, w))
    assert (f"f32[48,{rows}] = dot_general" in text) is is_turned


@pytest.mark.parametrize(
    ("platform", "flags", "expected"),
    [
        ("gpu", "sse2 avx2", "bfloat16"),
        ("cpu", "sse2 avx512_bf16 avx2", "bfloat16"),
        ("cpu", "amx_bf16 amx_tile", "bfloat16"),
        ("cpu", "asimd bf16 i8mm", "bfloat16"),
        ("cpu", "avx512f avx512_vnni", "float32"),
        ("cpu", None, "float32"),
    ],
)
def test_auto_is_bfloat16_where_the_processor_computes_it(platform, flags, expected, monkeypatch, tmp_path):
    file = tmp_path / "cpuinfo"
    if flags is not None:
        file.write_text(f"processor : 0\nflags : {flags}\n", encoding="utf-8")
    monkeypatch.setattr(kernels, "PROCESSOR", file)
    monkeypatch.setattr(kernels, "target_platform", lambda: platform)
    kernels.computes_bfloat16.cache_clear()
    assert kernels.product_dtype("auto") == expected
    assert kernels.product_dtype("float32") == jnp.float32 and kernels.product_dtype("bfloat16") == jnp.bfloat16
    kernels.computes_bfloat16.cache_clear()
