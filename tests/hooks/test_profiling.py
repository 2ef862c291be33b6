"""Traces of steps: which steps they name, where they begin and end, and values that are refused."""

from pathlib import Path

import pytest
from jax.profiler import ProfileData

from tests.training.tiny import flags, remove_layers
from transformer import train
from transformer.config import cli


def run(workdir: Path, profile: str, **changes) -> int:
    argv = [*flags(workdir, **changes), f"--profile={profile}"]
    return cli.execute(train.make_parser(), train.main, argv)


def traces(workdir: Path) -> list[list[int]]:
    """Returns the steps that each trace names, oldest trace first."""
    steps = []
    for path in sorted(
        (workdir / "profile").rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime
    ):
        planes = ProfileData.from_file(str(path)).planes
        events = [event for plane in planes for line in plane.lines for event in line.events]
        steps.append(
            [int(dict(event.stats)["step_num"]) for event in events if event.name == "train"]
        )
    return steps


@pytest.fixture(scope="module")
def workdir(tmp_path_factory) -> Path:
    """Returns the workdir of a run of five steps, of which 2 and 3 were traced."""
    workdir = tmp_path_factory.mktemp("profiled") / "run"
    with pytest.MonkeyPatch.context() as patch:
        remove_layers(patch)
        assert run(workdir, "2:3", training__steps=5) == 0
    return workdir


def error(capsys, workdir: Path, profile: str, **changes) -> str:
    capsys.readouterr()
    assert run(workdir, profile, **changes) == 2
    output, errors = capsys.readouterr()
    assert output == "" and "Traceback" not in errors
    return errors.splitlines()[-1]


@pytest.mark.slow
def test_the_trace_has_the_steps_that_were_named(workdir):
    assert traces(workdir) == [[2, 3]]


@pytest.mark.slow
def test_a_run_that_ends_earlier_writes_its_trace_and_no_step_is_traced_again(
    tmp_path, monkeypatch, capsys
):
    remove_layers(monkeypatch)
    assert run(tmp_path / "run", "3:100", training__steps=4) == 0
    assert traces(tmp_path / "run") == [[3, 4]]
    argv = [f"--workdir={tmp_path / 'run'}", "--extend=6"]
    capsys.readouterr()
    assert cli.execute(train.make_parser(), train.main, [*argv, "--profile=2:4"]) == 0
    logged = capsys.readouterr().err
    assert "Wrote a trace" not in logged
    assert (
        "warning: --profile: no trace, since the run has done these steps; it is at step 4."
        in logged
    )
    assert traces(tmp_path / "run") == [[3, 4]]


@pytest.mark.parametrize(
    "value", ["5", "5:", ":5", "a:b", "5:4", "0:4", "-1:4", "1.5:2", "1:2:3", ""]
)
def test_values_that_are_no_steps_are_refused(value, tmp_path, capsys):
    line = error(capsys, tmp_path / "run", value)
    assert (
        f"--profile: {value} must be FROM:TO, the first and the last step, such as 100:105" in line
    )
    assert not (tmp_path / "run").exists()


def test_steps_after_the_last_one_are_refused(tmp_path, capsys):
    line = error(capsys, tmp_path / "run", "9:12", training__steps=8)
    assert line.endswith("--profile: the run ends at config.training.steps=8; name earlier steps")
