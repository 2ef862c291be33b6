"""The command `scripts.sweep` around its trials, which are fakes: its folder, its storage, its terminal."""

import contextlib
import csv
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import optuna
import pytest

from scripts import sweep
from scripts.sweeping.folder import Folder, recorded_sweep
from scripts.sweeping.ledger import Ledger
from tests.checkpoints.workdirs import run
from tests.scripts.sweeping import fake_sweep
from tests.scripts.sweeping.fakes import starts
from transformer.errors import UserError

CONFIG = "--config=configs/quickstart.py"
COMMAND = [sys.executable, "-m", "tests.scripts.sweeping.fake_sweep", CONFIG]


def sweep_file(folder: Path, rates: list[float]) -> str:
    path = folder / "rates.py"
    trials = f'sweep.product({{"optimizer.learning_rate": {rates}}})'
    path.write_text(f'def get_sweep(sweep):\n    return sweep.listed({trials}, objective="nll", pruner=None)\n')
    return f"--sweep={path}"


@pytest.fixture
def fakes(monkeypatch):
    """The command, run in this process, has fake trials."""
    monkeypatch.setattr(sweep, "make_task", fake_sweep.make_task)


def enter(tmp_path: Path) -> Ledger:
    """The ledger of a sweep of two trials, entered as by one more process."""
    arguments = sweep.make_parser().parse([CONFIG, sweep_file(tmp_path, [1.0, 2.0]), f"--workdir={tmp_path / 'sweep'}"])
    folder = Folder(tmp_path / "sweep")
    what, task = sweep.check(arguments, folder)
    return sweep.enter(folder, what, task, folder.storage)


def error(capsys) -> str:
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    return line


def test_the_same_command_twice_is_one_sweep(shared_storage, tmp_path):
    folder = tmp_path / "sweep"
    command = [
        *COMMAND,
        sweep_file(tmp_path, [1.0, 2.0, 3.0, 4.0]),
        f"--workdir={folder}",
        f"--storage={shared_storage}",
    ]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    (table, log), (other_table, other_log) = (process.communicate(timeout=300) for process in processes)
    assert [process.returncode for process in processes] == [0, 0], log + other_log
    assert table == other_table and [line.split(" | ")[1] for line in table.splitlines()[2:6]] == ["4", "3", "2", "1"]
    assert sorted(re.findall(r"Trial (\d): ", log + other_log)) == ["0", "1", "2", "3"]
    assert [starts(folder, trial) for trial in range(4)] == [1, 1, 1, 1]
    rows = list(csv.DictReader((folder / "trials.csv").read_text().splitlines()))
    assert [(row["state"], float(row["nll"])) for row in rows] == [("complete", 10 - 4 * rate) for rate in (1, 2, 3, 4)]


def test_a_terminal_has_one_display_for_all_trials(tmp_path):
    master, terminal = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    command = [*COMMAND, sweep_file(tmp_path, [1.0, 2.0]), f"--workdir={tmp_path / 'sweep'}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, env=environment, text=True) as process:
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(master, 4096):
                shown += part
        table = process.stdout.read()
    os.close(master)
    assert process.returncode == 0 and table.startswith("| nll | optimizer.learning_rate | trials |")
    text = shown.decode()
    assert "0 of 2 trials done  1 running" in text and "1 of 2 trials done  1 running" in text
    assert re.search(r"^0 +\d/4 +\S+ +optimizer.learning_rate=1", text, re.MULTILINE)
    assert "Trial 1 done: nll 2" in text


def test_a_folder_of_something_else_is_left_as_it_is(fakes, tmp_path, capsys):
    """Such as a run's: the lock is its trainer's, who writes into it who it is."""
    folder = tmp_path / "run"
    folder.mkdir()
    for lock_only in (True, False):
        (folder / ".lock").write_text("process 1 on elsewhere")
        if not lock_only:
            (folder / "config.json").write_text("{}")
        before = {path.name: path.read_text() for path in folder.iterdir()}
        assert run(sweep, CONFIG, sweep_file(tmp_path, [1.0]), f"--workdir={folder}") == 2
        assert "holds .lock and no sweep" in error(capsys)
        assert {path.name: path.read_text() for path in folder.iterdir()} == before


def test_another_sweep_is_refused_before_its_turn_is_waited_for(fakes, tmp_path, capsys):
    enter(tmp_path).__exit__()
    with Folder(tmp_path / "sweep").turn(0):
        assert run(sweep, CONFIG, sweep_file(tmp_path, [3.0]), f"--workdir={tmp_path / 'sweep'}") == 2
    assert "holds another sweep" in error(capsys)


def test_waiting_for_a_turn_has_an_end(tmp_path):
    folder = Folder(tmp_path)
    with folder.turn(0), pytest.raises(UserError, match="another process that begins this sweep"), folder.turn(0):
        pass


def test_an_unreachable_storage_leaves_no_folder(fakes, tmp_path, capsys):
    what = [CONFIG, sweep_file(tmp_path, [1.0]), f"--workdir={tmp_path / 'sweep'}"]
    for url in ("postgresql://a:secret@127.0.0.1:1/b", f"sqlite:///{tmp_path}/nowhere/study.db", "nosuch://host/b"):
        assert run(sweep, *what, f"--storage={url}") == 2
        assert f"--storage={url.replace('secret', '***')}: " in error(capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["rates.py"]


def test_who_enters_takes_nothing_over(fakes, tmp_path, monkeypatch):
    """After an outage of the storage all rows are silent: it would take healthy trials over."""
    with enter(tmp_path) as ledger:
        ledger.claim()
        monkeypatch.setattr(optuna.storages, "fail_stale_trials", lambda study: pytest.fail("taken over"))
        enter(tmp_path).__exit__()
        assert [standing.state for standing in ledger.standings()] == ["running", "waiting"]


def test_a_report_makes_nothing(fakes, tmp_path, capsys):
    folder = tmp_path / "sweep"
    with enter(tmp_path) as ledger:
        ledger.complete(ledger.claim(), 7.0)
    report = (f"--workdir={folder}", "--report")
    assert run(sweep, *report) == 0
    assert "| 7 | 1 | 0 |" in capsys.readouterr().out
    table, kept = (folder / "trials.csv").read_text(), (folder / "study.db").rename(tmp_path / "study.db")
    assert run(sweep, *report) == 2
    assert "study.db: no such file" in error(capsys)
    assert not (folder / "study.db").exists()

    # A study of another name, and one that a killed process has left without rows.
    with Ledger(Folder(folder).storage, "another", recorded_sweep(Folder(folder).read())):
        assert run(sweep, *report) == 2
        assert "has no study sweep-" in error(capsys)
    with Ledger(Folder(folder).storage, Folder(folder).read()["study"], recorded_sweep(Folder(folder).read())):
        assert run(sweep, *report) == 2
        assert "none has been run to its end" in error(capsys)
    assert (folder / "trials.csv").read_text() == table
    kept.replace(folder / "study.db")
    assert run(sweep, *report) == 0
