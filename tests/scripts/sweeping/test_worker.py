"""Workers and the processes of their trials: results, failures, pruning and interruptions."""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError

from scripts.sweeping import child, running, worker
from scripts.sweeping.folder import SweepFolder
from scripts.sweeping.study import SweepStudy
from scripts.sweeping.worker import TrialWorker
from tests.scripts.sweeping.fake_trial import ERRORS
from tests.scripts.sweeping.fakes import Fake, fake, make_study, slopes, starts, states, wait_until
from transformer.support.errors import UserError
from transformer.workdir import lock_workdir

PRUNER = optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=0)


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch):
    monkeypatch.setattr(worker, "HEARTBEAT", 0.2)
    monkeypatch.setattr(worker, "POLL", 0.05)


def run(study: SweepStudy, task: Fake, jobs: int = 1) -> None:
    running.run_trials(study, task, jobs)


def send_when(condition: Callable[[], bool], number: int, folder: Path) -> None:
    """Sends a signal to the process of trial 0, from a thread, as soon as the condition holds."""

    def send() -> None:
        wait_until(condition, 60)
        os.kill(int((folder / "pid").read_text()), number)

    threading.Thread(target=send).start()


def error(study: SweepStudy, trial: int) -> str:
    return study.trials()[trial].user_attrs["error"]


def test_every_trial_is_run_once_and_its_best_value_is_recorded(tmp_path):
    study = make_study(tmp_path, slopes([1.0, 2.0, -1.0]))
    run(study, fake(tmp_path), jobs=2)
    assert [trial.value for trial in study.trials()] == [6.0, 2.0, 11.0]
    assert [starts(tmp_path, trial) for trial in range(3)] == [1, 1, 1]


def test_a_failed_trial_is_reported_with_its_last_lines_and_stops_no_other(tmp_path):
    log = tmp_path / "logs" / "0000.txt"
    log.parent.mkdir()
    log.write_text(f"error: {ERRORS['full']}\n")  # of an earlier attempt
    study = make_study(tmp_path, slopes(["fail", "1"]))
    run(study, fake(tmp_path))
    assert states(study) == ["fail", "complete"]
    assert error(study, 0).startswith("exit code 2; the end of ")
    assert error(study, 0).splitlines()[1:] == ["first line", "error: out of luck"]
    run(study, fake(tmp_path))
    assert starts(tmp_path, 0) == 1
    study.retry_failed()
    run(study, fake(tmp_path))
    assert starts(tmp_path, 0) == 2


def test_a_trial_without_a_finite_value_fails(tmp_path):
    study = make_study(tmp_path, slopes(["nan"]))
    run(study, fake(tmp_path))
    assert (states(study), error(study, 0)) == (["fail"], "nll was never finite")


def test_a_metric_that_fails_is_the_error_of_its_trial(tmp_path, monkeypatch):
    def score(self, trial, objective):
        if trial == 0:
            raise UserError("the command of the metric failed")

    monkeypatch.setattr(Fake, "score", score)
    study = make_study(tmp_path, slopes([1.0, 2.0]))
    run(study, fake(tmp_path))
    assert states(study) == ["fail", "complete"]
    assert error(study, 0) == "the command of the metric failed"


def test_the_heartbeat_continues_while_a_metric_is_computed(tmp_path, monkeypatch):
    scoring = threading.Event()
    updates = []

    def update(self, number, trial):
        updates.append(scoring.is_set())
        return False

    def score(self, trial, objective):
        scoring.set()
        wait_until(lambda: updates.count(True) > 2, 60)
        scoring.clear()

    monkeypatch.setattr(TrialWorker, "_update", update)
    monkeypatch.setattr(Fake, "score", score)
    study = make_study(tmp_path, slopes([1.0]))
    run(study, fake(tmp_path))
    assert states(study) == ["complete"] and updates.count(True) > 2


@pytest.mark.slow
def test_a_pruned_trial_is_stopped(tmp_path):
    study = make_study(tmp_path, slopes([1.0, -1.0], PRUNER))
    run(study, fake(tmp_path, seconds=0.2, steps=8))
    assert states(study) == ["complete", "pruned"]
    assert len((tmp_path / "trials" / "0001" / "metrics.jsonl").read_text().splitlines()) < 8


def test_a_resumed_trial_is_not_pruned_for_its_earlier_values(tmp_path):
    """Its first values are worse than those of the other trial, and its last is better."""
    record = tmp_path / "trials" / "0001" / "metrics.jsonl"
    record.parent.mkdir(parents=True)
    lines = [
        {"step": step, "split": "valid", "nll": nll}
        for step, nll in [(1, 20.0), (2, 20.0), (3, 1.0)]
    ]
    record.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    study = make_study(tmp_path, slopes([1.0, 2.0], PRUNER))
    run(study, fake(tmp_path))
    assert states(study) == ["complete", "complete"]


def test_a_trial_with_invalid_values_fails(tmp_path):
    class Refusing(Fake):
        def command(self, trial, values):
            if values["slope"] == 2.0:
                raise UserError("config.model.num_heads=3: does not divide 128")
            return super().command(trial, values)

    study = make_study(tmp_path, slopes([1.0, 2.0, 3.0]))
    run(study, Refusing(config=None, folder=SweepFolder(tmp_path)))
    assert states(study) == ["complete", "fail", "complete"]
    assert "does not divide" in error(study, 1)


def test_a_full_disk_ends_the_sweep_and_fails_no_trial(tmp_path):
    study = make_study(tmp_path, slopes(["full", "1"]))
    with pytest.raises(UserError, match="trial 0: the disk is full"):
        run(study, fake(tmp_path))
    assert states(study) == ["waiting", "waiting"]


def test_a_trial_waits_while_its_workdir_is_in_use(tmp_path, caplog):
    study, stop = make_study(tmp_path, slopes([1.0])), threading.Event()
    with lock_workdir(tmp_path / "trials" / "0000"):
        thread = threading.Thread(
            target=TrialWorker(study, fake(tmp_path), {}, set(), stop, child.start).run
        )
        thread.start()
        wait_until(lambda: f"is in use by process {os.getpid()}" in caplog.text, 60)
        stop.set()
        thread.join()
    assert states(study) == ["waiting"]
    assert not (tmp_path / "trials" / "0000" / "starts").exists()


@pytest.mark.slow
def test_a_trial_that_is_terminated_from_outside_is_resumed(tmp_path):
    folder, study = tmp_path / "trials" / "0000", make_study(tmp_path, slopes([1.0]))
    send_when((folder / "metrics.jsonl").exists, signal.SIGTERM, folder)
    run(study, fake(tmp_path, seconds=0.4))
    assert (states(study), starts(tmp_path, 0)) == (["complete"], 2)


def test_a_trial_that_is_killed_from_outside_fails(tmp_path):
    folder, study = tmp_path / "trials" / "0000", make_study(tmp_path, slopes([1.0]))
    send_when((folder / "starts").exists, signal.SIGKILL, folder)
    run(study, fake(tmp_path, seconds=2.0))
    assert states(study) == ["fail"]
    assert error(study, 0).startswith("killed by signal 9")


@pytest.mark.slow
def test_a_trial_that_another_process_has_taken_is_stopped(tmp_path, monkeypatch, caplog):
    def update(trial, objective):
        if objective:
            study.requeue(trial)  # as `claim` of another process does after the grace period
            monkeypatch.undo()
            raise UpdateFinishedTrialError
        return False

    study = make_study(tmp_path, slopes([1.0]))
    monkeypatch.setattr(study, "update", update)
    run(study, fake(tmp_path, seconds=0.4))
    assert "Trial 0 was taken by another process" in caplog.text
    assert (states(study), starts(tmp_path, 0)) == (["complete"], 2)
    assert len((tmp_path / "trials" / "0000" / "metrics.jsonl").read_text().splitlines()) == 4


@pytest.mark.first_case
@pytest.mark.parametrize("failures", [3, None])
def test_calls_to_a_storage_that_fails_are_repeated_for_a_while(tmp_path, monkeypatch, failures):
    study = make_study(tmp_path, slopes([1.0]))
    claim, calls = study.claim, []

    def fails_at_first():
        calls.append(None)
        if failures is None or len(calls) <= failures:
            raise StorageInternalError from OSError("gone")
        return claim()

    monkeypatch.setattr(worker, "OUTAGE", 1.0 if failures is None else 900.0)
    monkeypatch.setattr(study, "claim", fails_at_first)
    with pytest.raises(StorageInternalError) if failures is None else contextlib.nullcontext():
        run(study, fake(tmp_path))
    assert len(calls) > 3
    assert states(study) == ["complete" if failures else "waiting"]


def test_jobs_share_the_gpus(monkeypatch):
    def shares(devices: str, jobs: int) -> list[str]:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
        return [environment["CUDA_VISIBLE_DEVICES"] for environment in running._environments(jobs)]

    assert shares("0,1,2,3", 4) == ["0", "1", "2", "3"]
    assert shares("0,1,2,3", 2) == ["0,1", "2,3"]
    assert shares("0,1,2,3", 1) == ["0,1,2,3"]
    assert shares("0", 2) == ["0", "0"]
    assert [each["XLA_PYTHON_CLIENT_MEM_FRACTION"] for each in running._environments(3)] == [
        "0.300"
    ] * 3
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in running._environments(1)[0]


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="this system cannot reserve processors"
)
def test_jobs_share_the_processors(monkeypatch):
    def shares(processors: set[int], jobs: int) -> list[set[int]]:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: processors)
        return running._processors(jobs)

    assert shares({0, 1, 2, 3}, 2) == [{0, 1}, {2, 3}]
    assert shares({1, 4, 5}, 2) == [{1}, {4}]
    assert shares({0, 1}, 1) == [{0, 1}]
    assert shares({0, 1}, 3) == [{0, 1}] * 3


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="this system cannot reserve processors"
)
def test_trials_run_on_the_processors_of_their_worker(tmp_path, monkeypatch):
    ours = os.sched_getaffinity(0)
    monkeypatch.setattr(running, "_processors", lambda jobs: [{min(ours)}] * jobs)
    run(make_study(tmp_path, slopes([1.0, 2.0])), fake(tmp_path, steps=1), jobs=2)
    for trial in range(2):
        assert (SweepFolder(tmp_path).workdir(trial) / "processors").read_text() == str({min(ours)})
    assert os.sched_getaffinity(0) == ours
