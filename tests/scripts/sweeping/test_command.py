"""The workdir and the storage of `scripts.sweep`, with fake trials."""

import csv
import json
import re
import subprocess
import sys

import pytest

from scripts import sweep
from scripts.sweeping import tasks
from scripts.sweeping.description import listed, product
from scripts.sweeping.folder import SweepFolder
from tests.checkpoints.workdirs import run
from tests.scripts.sweeping import fake_sweep
from tests.scripts.sweeping.fakes import starts
from tests.scripts.tiny_sweep import rates_file
from transformer.support.errors import UserError

CONFIG = "--config=configs/quickstart.py"
COMMAND = [sys.executable, "-m", "tests.scripts.sweeping.fake_sweep", CONFIG]


@pytest.fixture
def fakes(monkeypatch):
    """Makes the command, run in this process, have fake trials."""
    monkeypatch.setattr(tasks, "make_task", fake_sweep.make_task)


def error(capsys) -> str:
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    return line


@pytest.mark.slow
def test_the_same_command_twice_is_one_sweep(shared_storage, tmp_path):
    folder = tmp_path / "sweep"
    flags = [
        rates_file(tmp_path, [1.0, 2.0, 3.0, 4.0]),
        f"--workdir={folder}",
        f"--storage={shared_storage}",
    ]
    processes = [
        subprocess.Popen(
            [*COMMAND, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    (table, log), (other_table, other_log) = (
        process.communicate(timeout=300) for process in processes
    )
    assert [process.returncode for process in processes] == [0, 0], log + other_log
    assert table == other_table and [line.split(" | ")[1] for line in table.splitlines()[2:6]] == [
        "4",
        "3",
        "2",
        "1",
    ]
    assert sorted(re.findall(r"Trial (\d): ", log + other_log)) == ["0", "1", "2", "3"]
    assert (
        "0 of 4 trials complete, 1 running" in log + other_log
        and "complete: nll 2" in log + other_log
    )
    assert [starts(folder, trial) for trial in range(4)] == [1, 1, 1, 1]
    rows = list(csv.DictReader((folder / "trials.csv").read_text().splitlines()))
    assert [(row["state"], float(row["nll"])) for row in rows] == [
        ("complete", 10 - 4 * rate) for rate in (1, 2, 3, 4)
    ]


@pytest.mark.slow
def test_an_unreachable_storage_is_an_error_and_another_one_can_be_given(fakes, tmp_path, capsys):
    what = [CONFIG, rates_file(tmp_path, [1.0]), f"--workdir={tmp_path / 'sweep'}"]
    for url in (
        "postgresql://a:secret@127.0.0.1:1/b",
        f"sqlite:///{tmp_path}/nowhere/study.db",
        "nosuch://host/b",
    ):
        assert run(sweep, *what, f"--storage={url}") == 2
        assert f"--storage={url.replace('secret', '***')}: " in error(capsys)
    assert run(sweep, *what, f"--storage=sqlite:///{tmp_path / 'elsewhere.db'}") == 0
    assert run(sweep, *what) == 2  # with the default storage, where the study is not
    assert "has no study sweep-" in error(capsys)


@pytest.mark.parametrize(
    ("key", "values", "added"),
    [
        ("optimizer.learning_rate", [1, 2], 0.5),
        ("optimizer.name", ["adam"], "muon"),
        ("seed", [0], 1),
    ],
)
def test_a_sweep_is_extended_only_with_values_of_the_same_kind(tmp_path, key, values, added):
    folder = SweepFolder(tmp_path)
    shorter, longer = (
        listed(product({key: choices}), objective="nll", pruner=None)
        for choices in (values, [*values, added])
    )
    folder.record.write_text(json.dumps(folder.describe(shorter, {})))
    if key == "seed":
        assert folder.describe(longer, {})["trials"] == [{"seed": 0}, {"seed": 1}]
    else:
        with pytest.raises(UserError, match=f"{key} has other values now .*; name another folder"):
            folder.describe(longer, {})


@pytest.mark.slow
def test_a_report_needs_neither_config_nor_sweep_file(fakes, tmp_path, capsys):
    folder = SweepFolder(tmp_path / "sweep")
    report = (f"--workdir={folder.path}", "--report")
    assert run(sweep, *report) == 2
    assert "is not the folder of a sweep" in error(capsys)
    assert run(sweep, CONFIG, rates_file(tmp_path, [1.0]), f"--workdir={folder.path}") == 0
    table = capsys.readouterr().out
    assert "| 6 | 1 | 0 |" in table
    assert run(sweep, *report) == 0
    assert capsys.readouterr().out == table
    readme = tmp_path / "README.md"
    readme.write_text("<!-- sweep: begin -->\n<!-- sweep: end -->\n")
    assert run(sweep, *report, f"--readme={readme}") == 0
    assert table in readme.read_text() and capsys.readouterr().out == ""
