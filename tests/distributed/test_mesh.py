"""The same run on meshes of one to eight devices, and the compiled programs, in a process with
eight CPU devices.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from configs.rules import SWITCH
from scripts.sweeping.description import load_sweep
from tests.distributed.kinds_of_models import COMBINED
from transformer.config.keys import declared_keys

KINDS = "configs/sweeps/kinds.py"  # of the table in docs/results.md

pytestmark = pytest.mark.long

ONE = (1, 1, 1)
MESHES = [(2, 2, 2)]  # data, fsdp, tensor; each takes seconds to compile
OTHERS = [(1, 4, 1), (2, 1, 1), (8, 1, 1), (1, 8, 1), (1, 1, 4), (2, 4, 1), (4, 1, 2)]


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> dict:
    return find(tmp_path_factory.mktemp("run"), MESHES)


def find(run: Path, meshes: list[tuple[int, int, int]]) -> dict:
    """Returns what `eight_devices.py` reports for these meshes and for one device."""
    return run_on_eight_devices("eight_devices", str(run), json.dumps([ONE, *meshes]))


def run_on_eight_devices(module: str, *arguments: str) -> dict:
    """Runs a module of this folder in a process with eight CPU devices and returns the JSON that it
    prints.

    No program of the process may have an inefficient resharding, of which the compiler warns.
    """
    xla_flags = f"--xla_force_host_platform_device_count=8 {os.environ['XLA_FLAGS']}"
    environment = os.environ | {"XLA_FLAGS": xla_flags, "JAX_PLATFORMS": "cpu"}
    argv = [sys.executable, "-m", f"tests.distributed.{module}", *arguments]
    done = subprocess.run(
        argv, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    # The compiler replicates an array to reshard it. Constraints on shardings prevent that. To
    # estimate costs, JAX 0.12 also partitions operations in ways that it does not choose; their
    # operands are fake parameters.
    warnings = [
        line for line in done.stderr.splitlines() if "Involuntary full rematerialization" in line
    ]
    assert not [line for line in warnings if "operation %fake_parameter" not in line], done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_the_losses_do_not_depend_on_the_mesh(report, mesh):
    here, one = report["meshes"][str(mesh)], report["meshes"][str(ONE)]
    assert here["start"] == 0.0
    assert here["losses"][0] == pytest.approx(one["losses"][0], rel=1e-5)
    np.testing.assert_allclose(here["losses"], one["losses"], rtol=1e-3)
    # Adam's updates do not depend on the scale of the gradients.
    assert here["gradient_norms"][0] == pytest.approx(one["gradient_norms"][0], rel=1e-4)
    assert (
        here["module_norms"] == pytest.approx(one["module_norms"], rel=1e-4, abs=1e-6)
        and one["module_norms"]
    )
    # The model has learned something; otherwise equal losses would show little.
    assert one["losses"][-1] < 0.9 * one["losses"][0]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_the_gradient_in_bfloat16_does_not_depend_on_the_mesh(report, mesh):
    """The mesh may change the order of sums in float32, and so, rarely, how an activation is
    rounded to bfloat16.

    The rounding of all elements to the 8 bits of bfloat16 has a relative error of 2**-9 / sqrt(3) =
    1.1e-3. So a gradient that devices round before they sum it fails, as does a lost or repeated
    term.
    """
    here, one = report["bfloat16"][str(mesh)], report["bfloat16"][str(ONE)]
    assert here["loss"] == pytest.approx(one["loss"], rel=5e-4)
    # More devices than heads share each head: products over its dimensions become sums of rounded
    # parts.
    assert here["gradient_error"] < (5e-4 if mesh[-1] <= 2 else 2**-6)


@pytest.mark.parametrize("update", ["muon", "averaging", "ctc"])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_an_update_does_not_depend_on_the_mesh(report, mesh, update):
    assert report[update][str(mesh)] < 1e-4


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_both_passes_of_a_sentence_are_compared_on_one_device(report, mesh):
    (loss, d_bias), (expected, expected_d_bias) = (
        report["r_drop"][str(shape)] for shape in (mesh, ONE)
    )
    assert loss == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(d_bias, expected_d_bias, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_translations_do_not_depend_on_the_mesh(report, mesh, dtype):
    here, one = (report["translations"][dtype][str(shape)] for shape in (mesh, ONE))
    assert here == one
    assert len({text for text, *_ in one}) >= 4


@pytest.mark.parametrize("kind", COMBINED)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_the_loss_and_the_gradient_of_a_kind_of_model_do_not_depend_on_the_mesh(report, mesh, kind):
    here = report["kinds"][kind][str(mesh)]
    assert here["loss"] < 1e-6 and here["gradient"] < 1e-5


def every_kind() -> list[dict]:
    """Returns the kinds of docs/results.md, each name and switch of the model's keys, and other
    parts of a loss.
    """
    kinds = [
        {key: trial[key] for key in trial.keys() - {"seed"}} for trial in load_sweep(KINDS).trials
    ]
    for key, declared in declared_keys().items():
        if key.startswith("model.") and key not in (
            "model.dtype",
            "model.attention_implementation",
        ):
            values = (True, False) if declared.rule is SWITCH else declared.rule.names
            kinds += [{key: value} for value in values if value != declared.default]
    for kind in [
        {},
        {"model.decoder_self_attention": "average"},
        {"model.decoder_self_attention": "ssru"},
    ]:
        kinds += [kind | {"batch.plan": "packed"}, kind | {"model.num_layers": 2, "model.d_ff": 32}]
        kinds.append(kind | {"training.objective": "causal_lm", "data.source_language": ""})
    kinds += [
        {"model.d_k": 6, "model.d_v": 2},
        {"model.num_heads": 1},
        {"model.num_layers": 2, "model.layer_drop": 0.5},
        {"training.r_drop": 1.0},
        {"training.label_smoothing_support": "others"},
        {"training.guided_heads": "1.2,1.1"},
        {"training.objective": "masked_lm", "data.target_language": ""},
        {"training.objective": "ctc"},
        {"data.mixture": ("label=a pair_weights=FILE",)},
    ]
    return list({json.dumps(kind): kind for kind in kinds}.values())


@pytest.mark.slow
def test_no_kind_of_model_depends_on_a_mesh_that_uses_every_axis():
    found = run_on_eight_devices("kinds_of_models", json.dumps(MESHES[0]), json.dumps(every_kind()))
    assert len(found) >= 40 and all(
        error < 1e-5 for errors in found.values() for error in errors.values()
    ), found


@pytest.mark.slow
def test_other_meshes(tmp_path):
    report = find(tmp_path, OTHERS)
    for mesh in OTHERS:
        test_the_losses_do_not_depend_on_the_mesh(report, mesh)
        test_the_gradient_in_bfloat16_does_not_depend_on_the_mesh(report, mesh)
        for update in ("muon", "averaging", "ctc"):
            test_an_update_does_not_depend_on_the_mesh(report, mesh, update)
        for kind in COMBINED:
            test_the_loss_and_the_gradient_of_a_kind_of_model_do_not_depend_on_the_mesh(
                report, mesh, kind
            )
        test_both_passes_of_a_sentence_are_compared_on_one_device(report, mesh)
        for dtype in ("float32", "bfloat16"):
            test_translations_do_not_depend_on_the_mesh(report, mesh, dtype)
        test_each_device_holds_its_share(report, mesh)
    test_a_run_resumes_on_another_mesh(report)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_each_device_holds_its_share(report, mesh):
    here, (data, fsdp, tensor) = report["meshes"][str(mesh)], mesh
    assert (
        here["matrices_held"]
        == here["moments_held"]
        == [1 / (fsdp * tensor)] * (data * fsdp * tensor)
    )
    assert here["rows_held"] == 8 // (data * fsdp)


@pytest.mark.parametrize("mesh", [ONE, *MESHES], ids=str)
def test_the_compiled_step_takes_no_more_memory_than_its_share(report, mesh):
    # Vectors, the norms' scales and biases, are whole on every device; metrics, those of modules
    # too, and addresses are less than 2 KiB more.
    sizes, (data, fsdp, tensor) = report["sizes"], mesh
    state = sizes["matrices"] / (fsdp * tensor) + sizes["vectors"]
    memory = report["meshes"][str(mesh)]["memory"]
    assert memory["arguments"] == pytest.approx(state + sizes["batch"] / (data * fsdp), abs=64)
    assert memory["outputs"] == pytest.approx(state, abs=2048)


def test_a_run_resumes_on_another_mesh(report):
    resumed = report["resumed"]
    assert resumed["restored"] == resumed["loaded_without_a_mesh"] == 0.0
    rest = report["meshes"][str(ONE)]["losses"][-len(resumed["losses"]) :]
    np.testing.assert_allclose(resumed["losses"], rest, rtol=1e-3)


SHARDED = [(1, 4, 1), (1, 2, 2)]


@pytest.fixture(scope="module")
def programs() -> dict:
    return run_on_eight_devices("compiled_programs", json.dumps([ONE, *SHARDED]))


@pytest.mark.parametrize("mesh", SHARDED, ids=str)
def test_no_collective_of_the_step_is_larger_than_the_largest_weight(programs, mesh):
    here = programs[str(mesh)]
    assert here["step"]
    assert max(map(math.prod, here["step"])) <= here["largest_weight"]


def test_fsdp_shards_the_activations(programs):
    assert programs["(1, 4, 1)"]["temporaries"] < 0.35 * programs[str(ONE)]["temporaries"]
