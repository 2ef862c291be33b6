"""Waiting for locks and other processes."""

import pytest

from transformer import cache, locks
from transformer.errors import UserError


def test_waiting_for_a_lock_has_a_deadline(tmp_path):
    lock = tmp_path / "lock"
    held = "waited 0 s for another process that prepares data .*lock.; check .*data.wait_seconds=0"
    with cache.exclusive(lock, 0), pytest.raises(UserError, match=held), cache.exclusive(lock, 0):
        pass
    with cache.exclusive(lock, 0):
        pass


def test_polling_warns_after_ten_seconds_and_then_every_minute(monkeypatch, caplog):
    clock = iter(range(0, 1000, 5))
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with pytest.raises(UserError, match="^waited 105 s for a friend; call$"):
        for _ in locks.poll_until("a friend", "call", 100):
            pass
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [f"Waiting for a friend: {seconds} of at most 100 s." for seconds in (15, 80)]
