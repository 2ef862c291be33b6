"""Devices by name, their compilers, and corpora of assumed lengths."""

from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from scripts.planning import devices, lengths
from scripts.planning.accelerator_estimate import compile_program, compile_shape
from scripts.planning.devices import ACCELERATORS, parse_target
from tests.training import tiny
from transformer.data.batches.epoch_plan import Bucket
from transformer.support.errors import UserError


@pytest.mark.parametrize(
    ("text", "count"),
    [("h100", 1), ("h200:8", 8), ("a100:16", 16), ("v5e:4x4", 16), ("v5p:2x2x1", 4)],
)
def test_targets(text, count):
    target = parse_target(text)
    assert (target.count, target.kind) == (count, ACCELERATORS[text.partition(":")[0]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "h1000",
            "no such device; the known ones are a100, h100, h200, v5e, v5p, v6e; "
            "did you mean h100?",
        ),
        ("", "no such device; the known ones are"),
        ("h100:0", "must be h100:SIZE, such as h100:8"),
        ("h100:2x2", "must be h100:SIZE, such as h100:8"),
        ("h100:9", "more than 8 GPUs must be whole hosts of 8"),
        ("v5e", "must be v5e:SIZE, such as v5e:2x2"),
        ("v5e:4", "must be v5e:SIZE, such as v5e:2x2"),
        ("v5p:2x2", "must be v5p:SIZE, such as v5p:2x2x1"),
    ],
)
def test_unusable_targets(text, message):
    with pytest.raises(UserError) as error:
        parse_target(text)
    assert str(error.value).startswith(f"--device={text}: {message}")


def test_gpus_of_several_hosts_send_through_the_network():
    assert (
        parse_target("h100:8").interconnect == 450e9
        and parse_target("h100:16").interconnect == 400e9
    )
    assert parse_target("v5e:16x16").interconnect == 200e9


def test_programs_can_use_the_memory_of_a_gpu_only_in_part():
    assert parse_target("h100").kind.usable == int(0.95 * 84_942_979_072)
    assert parse_target("v5e:2x2").kind.usable == 15.75 * 2**30


@pytest.mark.parametrize(("text", "name"), [("h100:8", "GPUs"), ("v5e:2x2", "TPUs")])
def test_a_missing_compiler_is_one_line_that_says_how_to_get_it(monkeypatch, text, name):
    monkeypatch.setattr(devices, "is_installed", lambda _: False)
    with pytest.raises(
        UserError, match=f"compiler for {name} is not installed.* -r {devices.REQUIREMENTS}$"
    ):
        devices.find_devices(parse_target(text))


def test_the_compilers_have_the_version_of_jax():
    def pins(name: str, package: str) -> list[str]:
        """The versions and their environment markers."""
        lines = Path(name).read_text(encoding="utf-8").splitlines()
        return [
            line.removeprefix(f"{package}==") for line in lines if line.startswith(f"{package}==")
        ]

    pinned = pins("requirements.txt", "jax")
    assert len(pinned) == 2
    for package in ("jax-cuda13-plugin", "jax-cuda13-pjrt"):
        assert pins(devices.REQUIREMENTS, package) == pinned


def test_cublas_compiles_what_triton_cannot(monkeypatch):
    def compile_(lowered, compiler_options=None):
        if compiler_options is None:
            raise jax.errors.JaxRuntimeError(
                "INTERNAL: Couldn't find output tile sizes that satisfy hlo"
            )
        return compiler_options

    lowered = jax.jit(lambda x: x + 1).lower(1.0)
    monkeypatch.setattr(jax.stages.Lowered, "compile", compile_)
    assert compile_program(lowered) == {"xla_gpu_enable_triton_gemm": False}


def test_the_assumed_lengths_have_the_stated_means():
    statistics = lengths.parse_statistics("50000:20:25")
    assert statistics == lengths.LengthStatistics(50_000, 20.0, 25.0)
    corpus = lengths.AssumedCorpus(statistics, tiny.tiny_config(data__max_length=1000))
    assert len(corpus) == 50_000 and corpus.lengths.min() >= 1
    np.testing.assert_allclose(corpus.lengths.mean(axis=0), [20, 25], rtol=0.01)
    shorter = lengths.AssumedCorpus(statistics, tiny.tiny_config(data__max_length=40)).lengths
    assert shorter.max() == 40 and 0.8 * 50_000 < len(shorter) < 50_000
    config = tiny.tiny_config(data__max_length=40, data__target_language="")
    monolingual = lengths.AssumedCorpus(statistics, config).lengths
    np.testing.assert_array_equal(monolingual, shorter * [1, 0])
    # The pairs that span corruption makes have both sides.
    config.training.objective = "span_corruption"
    pairs = lengths.AssumedCorpus(statistics, config).lengths
    np.testing.assert_array_equal(pairs, shorter)


@pytest.mark.parametrize(
    "text", ["", "20:25", "0:20:25", "x:1:1", "5:0:1", "5:1:nan", "5:1:inf", "1e99:1:1"]
)
def test_unusable_lengths(text):
    with pytest.raises(UserError, match=r"--lengths=.*: must be PAIRS:SOURCE:TARGET"):
        lengths.parse_statistics(text)


def test_a_step_that_the_compiler_of_tpus_rejects_is_one_line(monkeypatch):
    first = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 35.20G of 15.75G hbm."

    def reject(lowered):
        raise jax.errors.JaxRuntimeError(
            f"{first}\n\nTotal hbm usage >= 35.70G:\n  Largest program allocations:"
        )

    lowered = jax.jit(lambda x: x + 1).lower(1.0)
    monkeypatch.setattr(jax.stages.Lowered, "compile", reject)
    function = SimpleNamespace(lower=lambda: lowered)
    step = SimpleNamespace(
        config=tiny.tiny_config(),
        batch_call=lambda state, bucket, kind: (function,),
        shared_calls=lambda state: [],
    )
    bucket = Bucket(8, 16, 16)
    with pytest.raises(UserError) as error:
        compile_shape(step, None, bucket, parse_target("v5e:2x2"))
    reason = "Ran out of memory in memory space hbm. Used 35.20G of 15.75G hbm"
    advice = "lower config.batch.tokens=25000 and raise config.training.accumulation in return"
    assert str(error.value).startswith(
        f"--device=v5e:2x2: a step of {bucket} does not fit ({reason}); {advice}"
    )
    assert "\n" not in str(error.value)
