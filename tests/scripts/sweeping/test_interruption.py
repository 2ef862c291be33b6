"""Sweeps that are terminated or killed: their trials end with them and are continued."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scripts.sweeping.fakes import is_alive, make_study, slopes, starts, states, wait_until
from tests.scripts.tiny_sweep import rates_file

SWEEP = """
import sys
from pathlib import Path
from scripts.sweeping import running, worker
from tests.scripts.sweeping.fakes import fake, make_study, slopes
folder = Path(sys.argv[1])
worker.HEARTBEAT, worker.POLL = 0.5, 0.1
study = make_study(folder, slopes([1.0, 2.0, 3.0]), sys.argv[2], "killed", grace=5)
running.run_trials(study, fake(folder, seconds=0.3, steps=8), 1)
"""


def lines(workdir: Path) -> int:
    """Returns the number of steps made, in all attempts."""
    record = workdir / "metrics.jsonl"
    return len(record.read_text().splitlines()) if record.exists() else 0


@pytest.mark.slow
def test_the_trial_of_a_killed_process_is_continued_by_another(shared_storage, tmp_path):
    workdirs = [tmp_path / "trials" / f"{number:04}" for number in range(3)]
    study = make_study(tmp_path, slopes([1.0, 2.0, 3.0]), shared_storage, "killed")
    command = [sys.executable, "-c", SWEEP, str(tmp_path), shared_storage]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    wait_until(lambda: lines(workdirs[0]) >= 2, 120)
    owner = study.trials()[0].user_attrs["process"]
    killed, other = sorted(processes, key=lambda process: f"process {process.pid} " not in owner)
    child = int((workdirs[0] / "pid").read_text())
    killed.kill()
    killed.communicate()
    wait_until(lambda: not is_alive(child), 30)
    assert lines(workdirs[0]) < 8
    other.communicate(timeout=120)
    assert other.returncode == 0
    assert states(study) == ["complete"] * 3
    # The killed trial was resumed: each of its steps was made once.
    assert [starts(tmp_path, trial) for trial in range(3)] == [2, 1, 1]
    assert [lines(workdir) for workdir in workdirs] == [8, 8, 8]


@pytest.mark.slow
def test_sigterm_ends_the_trials_and_the_same_command_resumes_them(tmp_path):
    folder, what = tmp_path / "sweep", rates_file(tmp_path, [1.0, 2.0])
    flags = ["--config=configs/quickstart.py", what, f"--workdir={folder}", "--jobs=2"]
    command = [sys.executable, "-m", "tests.scripts.sweeping.fake_sweep", *flags]
    workdirs = [folder / "trials" / f"{number:04}" for number in range(2)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: all(lines(workdir) for workdir in workdirs), 120)
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=120)
    assert process.returncode == 130 and "the same command continues" in log
    assert not any(is_alive(int((workdir / "pid").read_text())) for workdir in workdirs)
    resumed = subprocess.run(command, capture_output=True, text=True)
    assert resumed.returncode == 0, resumed.stderr
    assert [starts(folder, trial) for trial in range(2)] == [2, 2]
    assert [lines(workdir) for workdir in workdirs] == [4, 4]
