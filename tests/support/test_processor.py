"""The dtypes that `model.dtype=auto` and `decoding.dtype=int8` mean on kinds of processors."""

import pytest

from transformer.support import processor


def describe_processor(monkeypatch, folder, flags):
    file = folder / "cpuinfo"
    if flags is not None:
        file.write_text(f"processor : 0\nflags : {flags}\n", encoding="utf-8")
    monkeypatch.setattr(processor, "DESCRIPTION", file)
    # not cached
    monkeypatch.setattr(processor, "processor_features", processor.processor_features.__wrapped__)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("avx512f avx512_vnni", True), ("amx_int8", True), ("asimd asimddp", True), ("avx2", False)],
)
def test_int8_needs_instructions_for_products_of_8_bits(flags, expected, monkeypatch, tmp_path):
    describe_processor(monkeypatch, tmp_path, flags)
    assert processor.computes_int8() is expected


def test_the_name_is_that_of_the_model(monkeypatch, tmp_path):
    file = tmp_path / "cpuinfo"
    monkeypatch.setattr(processor, "DESCRIPTION", file)
    assert processor.processor_name() is None
    file.write_text("processor : 0\nmodel name\t: Some: CPU 9 \n")
    assert processor.processor_name() == "Some: CPU 9"


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
def test_auto_is_bfloat16_where_the_processor_computes_it(
    platform, flags, expected, monkeypatch, tmp_path
):
    describe_processor(monkeypatch, tmp_path, flags)
    assert processor.auto_dtype(platform) == expected
