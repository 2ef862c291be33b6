"""The command `scripts.figures`: files of each kind, and one line for each mistake."""

import re
import struct
from pathlib import Path
from xml.etree import ElementTree

import pytest

import transformer
from scripts import charts, figures
from tests.checkpoints.workdirs import make_workdir, run
from tests.scripts.charts.drawn import data, texts
from tests.scripts.evaluated import make_run


def failure(capsys, *flags: str) -> str:
    """Returns the message of a command that is expected to fail."""
    assert run(figures, *flags) == 2
    captured = capsys.readouterr()
    (line,) = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert captured.out == "" and "Traceback" not in captured.err
    return line.removeprefix("error: ")


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_flags_offer_what_the_charts_have():
    assert list(figures.FLAGS) == charts.__all__
    assert tuple(charts.positions.PANELS) == figures.PANELS
    assert tuple(charts.curves.SPLITS) == figures.SPLITS


def test_each_format_is_a_valid_file_of_the_same_size(tmp_path):
    for ending in ("svg", "pdf", "PNG"):
        assert run(figures, "masks", f"--output={tmp_path / 'masks'}.{ending}", "--columns=1") == 0
    assert files_in(tmp_path) == ["masks.PNG", "masks.pdf", "masks.svg"]
    picture = ElementTree.parse(tmp_path / "masks.svg").getroot()
    width, height = (float(picture.attrib[name]) for name in ("width", "height"))
    assert "may attend" in texts(picture)
    pdf = (tmp_path / "masks.pdf").read_bytes()
    assert pdf.startswith(b"%PDF-") and pdf.rstrip().endswith(b"%%EOF")
    assert [float(x) for x in re.search(rb"MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", pdf).groups()] == [
        width,
        height,
    ]
    png = (tmp_path / "masks.PNG").read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", png[16:24]) == pytest.approx(
        (width * 300 / 72, height * 300 / 72), abs=2
    )


def test_every_figure_passes_its_flags_on(tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(
        "scripts.charts.theme.write", lambda chart, path: drawn.setdefault(path.stem, chart)
    )
    output = lambda name: f"--output={tmp_path / name}.svg"  # noqa: E731
    assert (
        run(
            figures,
            "positions",
            output("positions"),
            "--length=3",
            "--d_model=6",
            "--panels=products",
        )
        == 0
    )
    assert run(figures, "schedule", output("schedule"), "--curves=8:2,4:3", "--steps=5") == 0
    assert run(figures, "smoothing", output("smoothing"), "--smoothing=0.3") == 0
    assert {each["x"] for each in data(drawn["positions"])} == {0, 1, 2}
    assert {(each["name"]) for each in data(drawn["schedule"])} == {
        "d_model 8, warm-up 2",
        "d_model 4, warm-up 3",
    }
    assert [each["value"] for each in data(drawn["smoothing"])[:5]] == pytest.approx(
        [0, 0.1, 0.7, 0.1, 0.1], abs=1e-6
    )


@pytest.mark.slow
def test_attention_is_that_of_the_run_over_its_own_translation(tmp_path, monkeypatch, capsys):
    workdir = make_workdir(tmp_path / "run", steps=(10,))
    model = transformer.load(workdir)
    target = model.translate(["1 2 3"])[0][0].text
    expected = charts.attention.draw(
        model.attention("1 2 3", target), part="cross", layers=[1]
    ).to_dict()
    drawn = []
    monkeypatch.setattr(
        "scripts.charts.theme.write", lambda chart, path: drawn.append(chart.to_dict())
    )
    command = [
        "attention",
        f"--workdir={workdir}",
        "--source=1 2 3",
        f"--output={tmp_path / 'a.pdf'}",
    ]
    assert run(figures, *command, "--part=cross") == 0
    assert drawn == [expected]
    capsys.readouterr()
    assert (
        failure(capsys, *command, "--heads=1,9") == "heads=9: the part encoder has the heads 1, 2"
    )
    assert failure(capsys, *command, f"--target={'1 ' * 30}").startswith("target: has 31 tokens")


def test_an_output_that_cannot_be_written_is_refused_first(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(figures, "draw", None)
    before = files_in(tmp_path)
    refused = lambda name: failure(capsys, "masks", f"--output={tmp_path / name}")  # noqa: E731
    assert refused("a.gif").endswith("a.gif: must end in .pdf or .svg or .png")
    assert refused("none/a.svg").endswith("none; make it first, or name another")
    assert files_in(tmp_path) == before


def test_a_file_that_cannot_be_written_is_one_line(tmp_path, capsys):
    (tmp_path / "folder.svg").mkdir()
    line = failure(capsys, "smoothing", f"--output={tmp_path / 'folder.svg'}")
    assert "Is a directory" in line and files_in(tmp_path) == ["folder.svg"]


def test_mistakes_are_one_line_and_leave_no_file(tmp_path, capsys):
    output, empty = f"--output={tmp_path / 'a.svg'}", make_run(tmp_path / "empty")
    assert failure(capsys, "poses", output).startswith("argument figure: invalid choice: 'poses'")
    assert failure(capsys, "masks", output, "--heads=2").startswith(
        "--heads: the figure masks has no such flag; it has"
    )
    assert failure(capsys, "curves", output) == "--workdir: the figure curves needs it"
    assert (
        failure(capsys, "attention", output, f"--workdir={empty}")
        == "--source: the figure attention needs it"
    )
    untrained = make_workdir(tmp_path / "untrained", steps=())
    before = files_in(tmp_path)
    assert "has no checkpoint yet" in failure(
        capsys, "attention", output, f"--workdir={untrained}", "--source=1"
    )
    assert "its record has no loss" in failure(capsys, "curves", output, f"--workdir={empty}")
    assert "no such folder" in failure(
        capsys, "curves", output, "--workdir", str(tmp_path / "none"), str(empty)
    )
    assert "one folder" in failure(
        capsys, "table3", output, "--workdir", str(empty), str(tmp_path / "none")
    )
    line = failure(capsys, "schedule", output, f"--workdir={empty}")
    assert (
        line
        == "--workdir: the figure schedule has no such flag; it has --columns, --curves, --steps"
    )
    assert "D_MODEL:WARMUP" in failure(capsys, "schedule", output, "--curves=512")
    assert "is not UTF-8" in failure(
        capsys, "attention", output, f"--workdir={empty}", "--source=\udcff"
    )
    assert "must be whole numbers" in failure(capsys, "attention", output, "--layers=a,b")
    assert files_in(tmp_path) == before
