"""Traces of steps: which steps they name, where they begin and end, the picture of one, and values that are refused."""

import re
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from jax.profiler import ProfileData

from scripts import draw_profile
from scripts.commands import draw_profile as work
from tests.training.tiny import flags
from transformer import cli, train


def run(workdir: Path, profile: str, **changes) -> int:
    argv = [*flags(workdir, **changes), f"--profile={profile}"]
    return cli.execute(train.make_parser(), train.main, argv)


def traces(workdir: Path) -> list[list[int]]:
    """Returns the steps that each trace names, oldest trace first."""
    found = []
    for path in sorted((workdir / "profile").rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime):
        planes = ProfileData.from_file(str(path)).planes
        events = [event for plane in planes for line in plane.lines for event in line.events]
        found.append([int(dict(event.stats)["step_num"]) for event in events if event.name == "train"])
    return found


@pytest.fixture(scope="module")
def workdir(tmp_path_factory) -> Path:
    """Returns the workdir of a run of five steps, of which 2 and 3 were traced."""
    workdir = tmp_path_factory.mktemp("profiled") / "run"
    assert run(workdir, "2:3", training__steps=5) == 0
    return workdir


def error(capsys, workdir: Path, profile: str, **changes) -> str:
    capsys.readouterr()
    assert run(workdir, profile, **changes) == 2
    output, errors = capsys.readouterr()
    assert output == "" and "Traceback" not in errors
    return errors.splitlines()[-1]


def test_the_trace_has_the_steps_that_were_named(workdir):
    assert traces(workdir) == [[2, 3]]


def test_a_run_that_ends_earlier_writes_its_trace_and_no_step_is_traced_again(workdir, tmp_path, capsys):
    assert run(tmp_path / "run", "3:100", training__steps=4) == 0
    assert traces(tmp_path / "run") == [[3, 4]]
    argv = [f"--workdir={tmp_path / 'run'}", "--extend=6"]
    capsys.readouterr()
    assert cli.execute(train.make_parser(), train.main, [*argv, "--profile=2:4"]) == 0
    assert "--profile=2:4: nothing is traced, since the run has already done step 4." in capsys.readouterr().err
    assert traces(tmp_path / "run") == [[3, 4]]


@pytest.mark.parametrize("value", ["5", "5:", ":5", "a:b", "5:4", "0:4", "-1:4", "1.5:2", "1:2:3", ""])
def test_values_that_are_no_steps_are_refused(value, tmp_path, capsys):
    found = error(capsys, tmp_path / "run", value)
    assert f"--profile: {value} must be FROM:TO, the first and the last step, such as 100:105" in found
    assert not (tmp_path / "run").exists()


def test_a_plan_has_no_steps_to_trace(tmp_path, capsys):
    argv = [*flags(tmp_path / "run"), "--profile=1:2", "--plan"]
    assert cli.execute(train.make_parser(), train.main, argv) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: --profile --plan: ")


def test_steps_after_the_last_one_are_refused(tmp_path, capsys):
    found = error(capsys, tmp_path / "run", "9:12", training__steps=8)
    assert found.endswith("--profile=9:12: the run ends at config.training.steps=8; name earlier ones")


def draw(workdir: Path, output: Path) -> int:
    argv = [f"--workdir={workdir}", f"--output={output}"]
    return cli.execute(draw_profile.make_parser(), draw_profile.main, argv)


def test_the_picture_shows_steps_waits_and_computation(workdir, tmp_path):
    assert draw(workdir, tmp_path / "profile.svg") == 0
    picture = ElementTree.fromstring((tmp_path / "profile.svg").read_text())
    texts = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "launching steps" and "2" in texts and any(re.match("CPU thread", text) for text in texts)
    colors = {element.get("fill") for element in picture.iter("{http://www.w3.org/2000/svg}rect")}
    assert {work.COLORS["wait for data"], work.BUSY} <= colors


def test_a_tpu_is_busy_only_during_operations():
    def line(name: str, *spans: tuple[int, int]) -> SimpleNamespace:
        events = [SimpleNamespace(name="event", start_ns=begin, end_ns=end) for begin, end in spans]
        return SimpleNamespace(name=name, events=events)

    operations = line("XLA Ops", (0, 10), (60, 100))
    tpu = SimpleNamespace(name="/device:TPU:0", lines=[line("Steps", (0, 100)), operations])
    gpu = SimpleNamespace(name="/device:GPU:0", lines=[line("Stream 1", (0, 10)), line("Stream 2", (60, 100))])
    found = work.rows(SimpleNamespace(planes=[tpu, gpu]))
    for name in ("TPU:0", "GPU:0"):
        assert [(span.begin, span.end) for span in found[name]] == [(0, 10), (60, 100)]


def test_the_time_axis_ends_where_the_spans_end():
    drawn = ElementTree.fromstring(work.draw({"row": [work.Span(0, 5e9, work.BUSY, "")]}))
    (span,) = [each for each in drawn if each.get("fill") == work.BUSY and float(each.get("width")) > 16]
    (last,) = [each for each in drawn if each.text == "5000 ms"]
    assert float(last.get("x")) == float(span.get("x")) + float(span.get("width"))
    assert last.get("text-anchor") == "end"


def test_a_run_without_a_trace_has_no_picture(tmp_path, capsys):
    assert cli.execute(train.make_parser(), train.main, flags(tmp_path / "run", training__steps=1)) == 0
    capsys.readouterr()
    assert draw(tmp_path / "run", tmp_path / "profile.svg") == 2
    assert "has no trace; train with --profile=FROM:TO" in capsys.readouterr().err


def test_gaps_narrower_than_a_pixel_are_closed():
    assert list(work.union([(5, 6), (0, 2), (1, 3), (3.5, 4)], 0.5)) == [(0, 4), (5, 6)]
