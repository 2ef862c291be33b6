"""docs/extending.md, run as it stands: its patches apply to the code, its losses are right, and its
command trains.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.distributed.loss_on_meshes import LOGITS, SMOOTHING, TARGETS, TEACHER
from tests.training import tiny
from transformer.support.special_tokens import EOS

PAGE = Path("docs/extending.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


OPTIONS = [patch for patch in blocks("diff") if "training/loss.py" not in patch]
TWO_LOSSES, DISTILLATION = LOSSES = [
    patch for patch in blocks("diff") if "training/loss.py" in patch
]


def patched_copy(folder: Path, patches: Sequence[str]) -> dict[str, str]:
    """Copies the code to a folder and applies patches.

    Returns the environment of processes that run the copy.
    """
    for name in ("configs", "transformer"):
        shutil.copytree(name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy("requirements.txt", folder)
    for patch in patches:
        # The page shows neither true line numbers nor counts; git finds the lines by their context.
        subprocess.run(
            ["git", "apply", "--recount", "-"], cwd=folder, input=patch.encode(), check=True
        )
    paths = f"{folder}{os.pathsep}{Path.cwd()}"  # tests/ is not copied
    return os.environ | {"PYTHONPATH": paths, "GIT_CEILING_DIRECTORIES": str(folder.parent)}


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


LOG_P = log_softmax(np.float64(LOGITS))
NLL = -np.take_along_axis(LOG_P, TARGETS[..., None], axis=-1)[..., 0]


def smoothed() -> np.ndarray:
    """Cross-entropy with label smoothing over all columns."""
    return (1 - SMOOTHING) * NLL - SMOOTHING * LOG_P.mean(axis=-1)


def focal() -> np.ndarray:
    return (1 - np.exp(-NLL)) ** 2 * smoothed()


def unlikelihood() -> np.ndarray:
    losses = smoothed()
    for row, targets in enumerate(TARGETS):
        earlier = set()
        for t, target in enumerate(targets):
            for token in earlier - {target}:
                losses[row, t] -= np.log(1 - np.exp(LOG_P[row, t, token]))
            earlier = set() if target == EOS else earlier | {target}
    return losses


def distillation() -> np.ndarray:
    teacher = np.exp(log_softmax(np.float64(TEACHER)))
    return (smoothed() - (teacher * LOG_P).sum(axis=-1)) / 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("patch", "expected"),
    [(TWO_LOSSES, focal), (TWO_LOSSES, unlikelihood), (DISTILLATION, distillation)],
    ids=["focal", "unlikelihood", "distillation"],
)
def test_a_loss_is_right_on_every_mesh_and_with_accumulation(tmp_path, patch, expected):
    environment = patched_copy(tmp_path, [patch])
    xla_flags = f"--xla_force_host_platform_device_count=4 {os.environ['XLA_FLAGS']}"
    environment |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags}
    argv = [sys.executable, "-m", "tests.distributed.loss_on_meshes", expected.__name__]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    np.testing.assert_allclose(report["losses"], expected(), rtol=1e-5)
    for name, errors in report["errors"].items():
        assert errors["loss"] < 1e-6, name
        assert errors["gradient"] < 1e-5, name


@pytest.mark.parametrize("patch", LOSSES)
def test_the_patch_of_a_loss_adds_few_lines(patch):
    added = [line for line in patch.splitlines() if re.match(r"\+ *[^+ ]", line)]
    assert len(added) <= 14


@pytest.mark.slow
def test_a_student_learns_from_its_teacher(tmp_path):
    """Also from the logits: its loss is not that of a student without a teacher."""
    student = tmp_path / "student"
    student.mkdir()
    plain = patched_copy(tmp_path, [])
    patched = patched_copy(student, [DISTILLATION])

    def run(folder: Path, environment: dict[str, str], name: str, **changes) -> float:
        flags = tiny.flags(folder / "runs" / name, training__steps=4, **changes)
        argv = [sys.executable, "-m", "transformer.train", *flags]
        done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return tiny.record(folder / "runs" / name)[-1]["nll"]

    run(tmp_path, plain, "teacher")
    shutil.copytree(tmp_path / "runs", student / "runs")
    vocabulary = {
        "tokenizer__model_file": str(tmp_path / "runs/teacher/tokenizer.model"),
        "seed": 2,
    }
    other = run(tmp_path, plain, "other", **vocabulary)
    loss = {"training__loss": "distillation"}
    assert run(student, patched, "student", **vocabulary, **loss) != other


@pytest.mark.slow
def test_the_page_adds_options_that_train(tmp_path):
    environment = patched_copy(tmp_path, OPTIONS)
    (command,) = blocks("sh")
    sizes = [
        "model.num_layers=1",
        "model.d_model=8",
        "model.d_ff=8",
        "model.num_heads=2",
        "batch.tokens=1024",
    ]
    sizes += ["data.max_length=80", "training.eval_bleu=false", "checkpoint.best_metric=loss"]
    sizes += ["data.synthetic_examples=200", f"data.cache_dir={tmp_path / 'cache'}"]
    words = [*shlex.split(command.replace("\\\n", ""))[1:], *(f"--config.{size}" for size in sizes)]
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "runs/options/config.json").read_text())
    assert (config["model"]["activation"], config["model"]["query_key_norm"]) == (
        "squared_relu",
        True,
    )
    assert (config["optimizer"]["name"], config["optimizer"]["schedule"]) == ("lion", "polynomial")
    assert (tmp_path / "runs/options/checkpoints/4").is_dir()


def test_the_page_stays_short():
    assert len(PAGE.splitlines()) <= 235
