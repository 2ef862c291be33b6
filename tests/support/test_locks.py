"""Waiting for locks and other processes."""

import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from transformer.support import locks, progress_bar
from transformer.support.errors import UserError


def exclusive(lock: Path, seconds: int) -> AbstractContextManager[None]:
    return locks.exclusive(lock, "a friend", "call", seconds)


def test_waiting_for_a_lock_has_a_deadline(tmp_path):
    lock = tmp_path / "lock"
    held = "waited 0 s for a friend .*lock.; call$"
    with exclusive(lock, 0), pytest.raises(UserError, match=held), exclusive(lock, 0):
        pass
    with exclusive(lock, 0):
        pass


def test_polling_warns_after_ten_seconds_and_then_every_minute(monkeypatch, caplog):
    clock = iter(range(0, 1000, 5))
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with pytest.raises(UserError, match="^waited 105 s for a friend; call$"):
        for _ in locks.poll_until("a friend", "call", 100, lambda: None):
            pass
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        f"Waiting for a friend: {seconds} s, {seconds} of at most 100 s without progress."
        for seconds in (15, 80)
    ]


def test_progress_extends_the_wait_and_is_passed_on(monkeypatch):
    clock, seen, reports = iter(range(0, 1000, 5)), iter([0, *range(40)]), []
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with (
        pytest.raises(UserError, match="^waited 105 s for a friend; call$"),
        locks.progress_reported_to(lambda: reports.append(1)),
    ):
        for _ in locks.poll_until("a friend", "call", 100, lambda: next(seen, 39)):
            pass
    assert len(reports) == 39
    assert next(clock) == 39 * 5 + 105 + 10


HOLD = """
import sys, time
from pathlib import Path
from transformer.support import locks, progress_bar
progress_bar.REPORT_SECONDS = 0.2
lock = locks.exclusive(Path(sys.argv[1]), "a friend", "call", 0)
with lock, progress_bar.bar("Preparing", 15) as advance:
    print("held", flush=True)
    for _ in range(15):
        time.sleep(0.1)
        if sys.argv[2] == "progress":
            advance(1)
        else:
            time.sleep(1)
"""


@pytest.mark.parametrize("kind", ["progress", "hangs"])
def test_a_lock_is_awaited_while_its_holder_makes_progress(tmp_path, kind):
    argv = [sys.executable, "-c", HOLD, str(tmp_path / "lock"), kind]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        if kind == "progress":
            with exclusive(tmp_path / "lock", 1):
                assert holder.wait(10) == 0
        else:
            with pytest.raises(UserError, match="waited 1 s"), exclusive(tmp_path / "lock", 1):
                pass
            holder.kill()


def test_bars_report_progress(monkeypatch):
    monkeypatch.setattr(progress_bar, "REPORT_SECONDS", 0.3)
    reports = []
    with locks.progress_reported_to(lambda: reports.append(1)):
        with progress_bar.bar("Preparing", 3) as advance:
            advance(1)
            advance(1)  # too early
            time.sleep(0.4)
            advance(1)
        assert len(reports) == 2
