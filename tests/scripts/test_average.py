"""The command `scripts.average`: a mean of checkpoints that all commands take, and runs that it
leaves as they are.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scripts import average
from tests.checkpoints.saved_runs import refusal
from tests.checkpoints.workdirs import make_workdir, run
from transformer import evaluate, train
from transformer.checkpoints import loaded_models
from transformer.checkpoints.restore import choose_step
from transformer.config import loading
from transformer.run import fine_tuning
from transformer.support import files
from transformer.workdir import Workdir


@pytest.fixture(scope="module")
def workdir(tmp_path_factory) -> Path:
    return make_workdir(tmp_path_factory.mktemp("runs") / "reverse")


@pytest.fixture(scope="module")
def averaged(workdir, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("averaged") / "new" / "mean"
    assert run(average, f"--workdir={workdir}", "--average=3", f"--output={output}") == 0
    return output


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def error(capsys, module, *flags: str) -> str:
    capsys.readouterr()
    assert run(module, *flags) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    return line


def test_the_parameters_are_the_mean(workdir, averaged):
    models = loaded_models.load([str(averaged)], "best", 1, [])
    parameters = [
        loaded_models.load([str(workdir)], step, 1, []).parameters[0] for step in ("10", "20", "30")
    ]
    mean = jax.tree.map(
        lambda *leaves: np.mean(np.stack(leaves).astype(np.float64), axis=0), *parameters
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), models.parameters[0], mean
    )
    assert models.checkpoints == (loaded_models.Checkpoint(str(averaged), 30, (10, 20, 30)),)
    # Bit for bit those of --average.
    direct = loaded_models.load([str(workdir)], "last", 3, []).parameters[0]
    jax.tree.map(np.testing.assert_array_equal, models.parameters[0], direct)


@pytest.mark.slow
def test_evaluating_it_gives_the_result_of_average(workdir, averaged, capsys):
    results = []
    for flags in (
        (f"--workdir={averaged}",),
        (f"--workdir={workdir}", "--checkpoint=last", "--average=3"),
    ):
        assert run(evaluate, *flags) == 0
        results.append(json.loads(capsys.readouterr().out))
    mean, direct = results
    for key in ("step", "averaged", "bleu", "chrf"):
        assert mean[key] == direct[key]
    assert Path(mean["hypotheses"]).read_text() == Path(direct["hypotheses"]).read_text()


def test_the_run_is_not_changed(workdir, tmp_path):
    before = contents(workdir)
    assert (
        run(
            average,
            f"--workdir={workdir}",
            "--average=2",
            "--checkpoint=20",
            f"--output={tmp_path / 'mean'}",
        )
        == 0
    )
    assert contents(workdir) == before
    (checkpoint,) = loaded_models.load([str(tmp_path / "mean")], "last", 1, []).checkpoints
    assert checkpoint.averaged == (10, 20)
    (tmp_path / "mean" / "averaged.json").write_text("{")
    assert "averaged.json: damaged" in refusal(
        loaded_models.load, [str(tmp_path / "mean")], "last", 1, []
    )


def test_the_output_is_beside_the_run_unless_named(tmp_path, capsys):
    workdir = make_workdir(tmp_path / "run", **{"checkpoint.keep": "2"})
    Workdir(workdir).shortlist.write_bytes(b"a shortlist")
    assert run(average, f"--workdir={workdir}") == 0
    assert capsys.readouterr().out == f"{workdir}-average2\n"
    assert choose_step(Path(f"{workdir}-average2"), "best") == 30
    assert Workdir(Path(f"{workdir}-average2")).shortlist.read_bytes() == b"a shortlist"


def test_training_does_not_resume_from_it_but_starts_from_it(averaged, tmp_path, capsys):
    line = error(capsys, train, f"--config={averaged}/config.json", f"--workdir={averaged}")
    assert "holds a mean of checkpoints, without an optimizer" in line
    assert f"--config.training.init_from={averaged}" in line
    config = loading.with_values(loading.load(averaged), {"training.init_from": str(averaged)})
    parent = fine_tuning.open_parent(config, Workdir(tmp_path))
    mean = loaded_models.load([str(averaged)], "last", 1, []).parameters[0]
    taken = parent.initial_parameters(jax.tree.map(jnp.zeros_like, mean), parent.tokenizer)
    jax.tree.map(np.testing.assert_array_equal, taken, mean)


def test_mistakes_are_errors_of_one_line(workdir, averaged, tmp_path, capsys):
    output = f"--output={tmp_path / 'mean'}"
    line = error(capsys, average, f"--workdir={workdir}", "--average=4", output)
    assert f"every 10 steps up to 30; {workdir} has 10, 20, 30: average at most 3" in line
    assert "up to 10;" in error(
        capsys, average, f"--workdir={workdir}", "--average=2", "--checkpoint=10", output
    )
    assert "--average: 0: must be at least 1" in error(
        capsys, average, f"--workdir={workdir}", "--average=0", output
    )
    assert f"--workdir={workdir}s: no such folder" in error(
        capsys, average, f"--workdir={workdir}s", output
    )
    assert "exists; delete it" in error(
        capsys, average, f"--workdir={workdir}", f"--output={averaged}"
    )
    (tmp_path / "file").touch()
    flags = (f"--workdir={workdir}", "--average=1", f"--output={tmp_path}/file/mean")
    assert f"--output={tmp_path}/file: cannot be made" in error(capsys, average, *flags)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_nothing_is_left_of_a_mean_that_fails(tmp_path, capsys, monkeypatch):
    workdir = make_workdir(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_json", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        assert "the disk is full" in error(capsys, average, f"--workdir={workdir}", "--average=3")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "run"]
    (workdir / "checkpoints" / "20" / "checkpoint.json").write_text("{")
    assert "checkpoint cannot be read" in error(
        capsys, average, f"--workdir={workdir}", "--average=3"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "run"]
