"""What a sweep makes of its trials' processes, and of its own death."""

import contextlib
import errno
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest

from scripts.sweeping import supervisor as supervisors
from scripts.sweeping.description import Sweep, listed, product
from scripts.sweeping.folder import Folder
from scripts.sweeping.jobs import Job
from scripts.sweeping.ledger import Ledger
from scripts.sweeping.supervisor import Supervisor
from tests.scripts.sweeping.fake_trial import ERRORS
from tests.scripts.sweeping.fakes import Fake, fake, starts
from transformer import workdir as workdirs
from transformer.errors import UserError


def sweep_of(slopes: list, pruner=None) -> Sweep:
    return listed(product({"slope": slopes}), objective="nll", pruner=pruner)


def run(ledger: Ledger, task: Fake, jobs: int = 1, show=lambda jobs: None) -> None:
    task.folder.logs.mkdir(exist_ok=True)
    Supervisor(ledger, task, jobs, task.folder.logs).run(show)


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'study.db'}"


def states(ledger: Ledger) -> list[str]:
    return [standing.state for standing in ledger.standings()]


def test_each_trial_is_run_and_its_best_value_entered(url, tmp_path):
    with Ledger(url, "study", sweep_of([1.0, 2.0, -1.0])) as ledger:
        run(ledger, fake(tmp_path), jobs=2)
        assert [standing.value for standing in ledger.standings()] == [6.0, 2.0, 11.0]
        assert [starts(tmp_path, trial) for trial in range(3)] == [1, 1, 1]


def test_a_failed_trial_is_told_with_its_last_lines_and_stops_no_other(url, tmp_path, caplog):
    with Ledger(url, "study", sweep_of(["fail", "1"])) as ledger:
        run(ledger, fake(tmp_path))
        assert states(ledger) == ["failed", "complete"]
        error = ledger.standings()[0].error
        assert error.startswith("exit code 2") and error.endswith("error: out of luck")
        run(ledger, fake(tmp_path))
        assert starts(tmp_path, 0) == 1
        ledger.retry_failed()
        run(ledger, fake(tmp_path))
        assert starts(tmp_path, 0) == 2


def test_a_trial_without_a_finite_value_has_failed(url, tmp_path):
    with Ledger(url, "study", sweep_of(["nan"])) as ledger:
        run(ledger, fake(tmp_path))
        assert states(ledger) == ["failed"]
        assert ledger.standings()[0].error == "nll was never a finite number"


def test_a_hopeless_trial_is_stopped(url, tmp_path):
    pruner = optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=0)
    with Ledger(url, "study", sweep_of([1.0, -1.0], pruner)) as ledger:
        run(ledger, fake(tmp_path, seconds=0.5, steps_wanted=8))
        assert states(ledger) == ["complete", "pruned"]
        assert len((tmp_path / "trials" / "0001" / "metrics.jsonl").read_text().splitlines()) < 8


def test_past_values_of_a_trial_that_goes_on_are_not_held_against_it(url, tmp_path):
    """Its first values were worse than the other's are; the last, when it goes on, is the best there is."""
    pruner = optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=0)
    sweep = sweep_of([1.0, 2.0], pruner)
    record = tmp_path / "trials" / "0001" / "metrics.jsonl"
    record.parent.mkdir(parents=True)
    lines = [{"step": step, "split": "valid", "nll": nll} for step, nll in [(1, 20.0), (2, 20.0), (3, 1.0)]]
    record.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with Ledger(url, "study", sweep) as ledger:
        run(ledger, fake(tmp_path))
        assert states(ledger) == ["complete", "complete"]


def test_values_that_cannot_be_run_are_a_failed_trial(url, tmp_path):
    class Refusing(Fake):
        def command(self, trial, values):
            if values["slope"] == 2.0:
                raise UserError("config.model.num_heads=3: does not divide 128")
            return super().command(trial, values)

    with Ledger(url, "study", sweep_of([1.0, 2.0, 3.0])) as ledger:
        run(ledger, Refusing(config=None, folder=Folder(tmp_path)))
        assert states(ledger) == ["complete", "failed", "complete"]
        assert "does not divide" in ledger.standings()[1].error


def test_a_full_disk_ends_the_sweep_and_fails_no_trial(url, tmp_path):
    with Ledger(url, "study", sweep_of(["full", "1"])) as ledger:
        with pytest.raises(UserError, match="trial 0: the disk is full"):
            run(ledger, fake(tmp_path))
        assert states(ledger) == ["missing", "waiting"]


def test_what_earlier_attempts_have_written_does_not_count(url, tmp_path):
    """Of a disk that was full then the log still tells."""
    log = tmp_path / "logs" / "0000.txt"
    log.parent.mkdir()
    log.write_text(f"error: {ERRORS['full']}\n")
    with Ledger(url, "study", sweep_of(["fail"])) as ledger:
        run(ledger, fake(tmp_path))
        assert states(ledger) == ["failed"]
        assert ledger.standings()[0].error.splitlines()[1:] == ["first line", "error: out of luck"]


def test_a_disk_so_full_that_nothing_could_be_said_of_it_fails_no_trial(url, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=0))
    with Ledger(url, "study", sweep_of(["fail", "1"])) as ledger:
        with pytest.raises(UserError, match="trial 0: the disk is full"):
            run(ledger, fake(tmp_path))
        assert states(ledger) == ["missing", "waiting"]


def test_a_disk_too_full_for_the_workdir_fails_no_trial(url, tmp_path, monkeypatch):
    mkdir = Path.mkdir

    def make(path, *arguments, **options):
        if path.name == "0000":
            raise OSError(errno.ENOSPC, "No space left on device")
        mkdir(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", make)
    with Ledger(url, "study", sweep_of(["1", "1.5"])) as ledger:
        with pytest.raises(OSError, match="No space left"):
            run(ledger, fake(tmp_path))
        assert states(ledger) == ["missing", "waiting"]


def test_a_trial_that_another_process_lets_go_of_late_is_not_lost(url, tmp_path, monkeypatch):
    """Between this one's look for what is left and its last look at the others."""
    sweep = sweep_of([1.0])
    with Ledger(url, "study", sweep) as ledger, Ledger(url, "study", sweep) as other:
        ledger.mend()
        theirs, claim = other.claim(), ledger.claim

        def claim_and_be_overtaken():
            attempt = claim()
            other.release(theirs)
            return attempt

        monkeypatch.setattr(supervisors, "LOOK", 0.2)
        monkeypatch.setattr(ledger, "claim", claim_and_be_overtaken)
        run(ledger, fake(tmp_path))
        assert states(ledger) == ["complete"]


def test_a_process_does_not_take_itself_for_dead(url, tmp_path, monkeypatch):
    """Its own clock stands still while the machine sleeps; the database's may not."""
    monkeypatch.setattr(supervisors, "HEARTBEAT", 1000.0)
    monkeypatch.setattr(supervisors, "LOOK", 0.5)
    with Ledger(url, "study", sweep_of([1.0]), grace=1) as ledger:
        run(ledger, fake(tmp_path, seconds=1.5))
        assert states(ledger) == ["complete"]
        assert starts(tmp_path, 0) == 1


def test_dead_are_only_those_who_were_watched_for_long_enough(url, tmp_path, monkeypatch):
    """After a start, an outage of the storage and a sleep of the machine all that live were silent too."""
    given_up, storage_is_away = [], False

    def ask() -> None:
        if storage_is_away:
            raise optuna.exceptions.StorageInternalError from OSError("gone")

    def give_up() -> None:
        ask()
        given_up.append(now)

    sweep = sweep_of([1.0])
    with Ledger(url, "study", sweep, grace=60) as ledger, Ledger(url, "study", sweep) as other:
        ledger.mend()
        other.claim()
        supervisor = Supervisor(ledger, fake(tmp_path), 1, tmp_path / "logs")
        monkeypatch.setattr(ledger, "mend", ask)
        monkeypatch.setattr(ledger, "give_up_silent", give_up)
        monkeypatch.setattr(supervisors, "time", SimpleNamespace(time=lambda: now, monotonic=time.monotonic))
        for now in (*range(1000, 1200, 5), *range(2000, 2080, 5)):  # it sleeps for 800 s
            supervisor.next_look, storage_is_away = 0.0, 1070 < now < 1110
            assert supervisor._patiently(supervisor._go_round, lambda jobs: None) is False
    assert given_up == [1060, 1065, 1070, *range(1170, 1200, 5), *range(2060, 2080, 5)]


def test_an_outage_of_the_storage_is_waited_for(url, tmp_path, monkeypatch):
    monkeypatch.setattr(supervisors, "LOOK", 0.2)
    with Ledger(url, "study", sweep_of([1.0, 2.0])) as ledger:
        calls, standings = [], ledger.standings

        def fails_for_a_while():
            calls.append(None)
            if 3 <= len(calls) < 8:
                raise optuna.exceptions.StorageInternalError from OSError("gone")
            return standings()

        monkeypatch.setattr(ledger, "standings", fails_for_a_while)
        run(ledger, fake(tmp_path))
        assert states(ledger) == ["complete", "complete"]
        assert len(calls) > 8


@pytest.mark.parametrize(("message", "patience"), [("gone", 1.0), ("database or disk is full", 0.0)])
def test_a_storage_that_stays_away_ends_the_sweep(url, tmp_path, monkeypatch, message, patience):
    def fails():
        raise optuna.exceptions.StorageInternalError from sqlite3.OperationalError(message)

    monkeypatch.setattr(supervisors, "OUTAGE", 1.0)
    monkeypatch.setattr(supervisors, "LOOK", 0.2)
    with Ledger(url, "study", sweep_of([1.0])) as ledger:
        monkeypatch.setattr(ledger, "mend", fails)
        monkeypatch.setattr(ledger, "standings", fails)
        began = time.monotonic()
        with pytest.raises(optuna.exceptions.StorageInternalError):
            run(ledger, fake(tmp_path))
        assert patience <= time.monotonic() - began < patience + 10 * supervisors.TICK


def test_a_trial_whose_workdir_is_in_use_waits_and_a_stopped_one_is_not_started(url, tmp_path, caplog):
    folder = tmp_path / "trials" / "0000"
    with Ledger(url, "study", sweep_of([1.0])) as ledger:
        ledger.mend()
        job = Job(fake(tmp_path), ledger.claim(), 0, 1, tmp_path / "logs")
        with workdirs.lock(folder):
            assert job.advance() is False and job.process is None
            assert f"is in use by process {os.getpid()}" in caplog.text
            job.stop()
        assert job.advance() is True and job.process is None


def test_a_trial_that_was_stopped_from_outside_goes_on(url, tmp_path):
    def stop_once(jobs):
        record = tmp_path / "trials" / "0000" / "metrics.jsonl"
        if record.exists() and starts(tmp_path, 0) == 1:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int((tmp_path / "trials" / "0000" / "pid").read_text()), signal.SIGTERM)

    with Ledger(url, "study", sweep_of([1.0])) as ledger:
        run(ledger, fake(tmp_path, seconds=0.4), show=stop_once)
        assert states(ledger) == ["complete"]
        assert starts(tmp_path, 0) == 2


def test_a_trial_that_is_killed_from_outside_has_failed(url, tmp_path):
    def kill(jobs):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((tmp_path / "trials" / "0000" / "pid").read_text()), signal.SIGKILL)

    with Ledger(url, "study", sweep_of([1.0])) as ledger:
        run(ledger, fake(tmp_path, seconds=2.0), show=kill)
        assert states(ledger) == ["failed"]
        assert ledger.standings()[0].error.startswith("killed by signal 9")


SWEEP = """
import sys
from pathlib import Path
from scripts.sweeping.ledger import Ledger
from tests.scripts.sweeping.fakes import fake
from tests.scripts.sweeping.test_supervisor import run, sweep_of
folder = Path(sys.argv[1])
with Ledger(sys.argv[2], "study", sweep_of([1.0, 2.0, 3.0, 4.0]), grace=3) as ledger:
    run(ledger, fake(folder, seconds=0.3, steps_wanted=10))
"""


def start(tmp_path: Path, url: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", SWEEP, str(tmp_path), url], stdout=subprocess.PIPE, text=True)


def is_alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]
    return False


def wait_until(condition, seconds: float) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_of_two_processes_one_is_killed_and_the_other_takes_over(shared_storage, tmp_path):
    sweep = sweep_of([1.0, 2.0, 3.0, 4.0])
    record = tmp_path / "trials" / "0000" / "metrics.jsonl"
    # First, as in use by the folder's lock: it makes the tables.
    with Ledger(shared_storage, "study", sweep) as ledger:
        processes = [start(tmp_path, shared_storage) for _ in range(2)]
        wait_until(lambda: record.exists() and len(record.read_text().splitlines()) >= 2, 60)
        worker = ledger.standings()[0].worker
        killed, other = sorted(processes, key=lambda process: f"process {process.pid} " not in worker)
        trial = int((record.parent / "pid").read_text())
        killed.kill()
        killed.communicate()
        wait_until(lambda: not is_alive(trial), 10)  # it does not outlive the process that started it
        assert len(record.read_text().splitlines()) < 10
        other.communicate(timeout=120)
        assert other.returncode == 0
        assert states(ledger) == ["complete"] * 4
        completed = [row for row in ledger.study.trials if row.state == optuna.trial.TrialState.COMPLETE]
        assert len(completed) == 4
    # The one that was cut went on where it was: each of its steps was made once.
    assert [starts(tmp_path, trial) for trial in range(4)] == [2, 1, 1, 1]
    for trial in range(4):
        assert len((tmp_path / "trials" / f"{trial:04}" / "metrics.jsonl").read_text().splitlines()) == 10


def test_an_interrupted_sweep_ends_its_trials_and_goes_on(url, tmp_path):
    process = start(tmp_path, url)
    record = tmp_path / "trials" / "0000" / "metrics.jsonl"
    wait_until(record.exists, 60)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    with Ledger(url, "study", sweep_of([1.0, 2.0, 3.0, 4.0])) as ledger:
        assert states(ledger) == ["missing", "waiting", "waiting", "waiting"]
        assert not is_alive(int((record.parent / "pid").read_text()))
        run(ledger, fake(tmp_path, seconds=0.01, steps_wanted=10), jobs=4)
        assert states(ledger) == ["complete"] * 4
