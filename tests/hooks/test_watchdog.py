"""The watchdog ends a process that hangs and shows its stacks; steps, polls and rollbacks keep a
process alive.
"""

import faulthandler
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training import tiny
from transformer.hooks.endings import Watchdog

SCRIPT = """
import time
from transformer.hooks.endings import Watchdog
for seconds, sleep, method, *arguments in {cases}:
    with Watchdog(seconds) as watchdog:
        watchdog.before_step(1)
        for _ in range(4):
            time.sleep(sleep)
            getattr(watchdog, method)(*arguments)
    print("done", flush=True)
"""

HANGING_RUN = """
import time
from transformer.config import cli
from transformer import train
from transformer.training.compiled_step import CompiledStep
update = CompiledStep.__call__
def hang():
    time.sleep(600)
def step(self, state, batches):
    return hang() if state.step == 2 else update(self, state, batches)
CompiledStep.__call__ = step
cli.run(train.make_parser(), train.main)
"""


HANGING = (0.5, 30.0, "poll")
# They take 2.0, 2.0, 0.4 and 2.4 seconds, the last one with 1.8 seconds after its timer has
# stopped.
CONTINUING = [
    (1.5, 0.5, "before_step", 2),
    (1.5, 0.5, "poll"),
    (0.0, 0.1, "poll"),
    (1.0, 0.6, "during", "rolling back"),
]


@pytest.mark.slow
def test_a_process_with_steps_or_polls_or_a_rollback_or_no_limit_continues_and_others_end():
    argv = [sys.executable, "-c", SCRIPT.format(cases=[*CONTINUING, HANGING])]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (1, "done\n" * len(CONTINUING))
    assert "Timeout (0:00:00.500000)!" in result.stderr and "line 8 in <module>" in result.stderr


@pytest.fixture
def timer(monkeypatch) -> list[float]:
    """Returns the list of the running timer's seconds, which is empty without one."""
    running = []

    def start(seconds: float, **_) -> None:
        running[:] = [seconds]

    monkeypatch.setattr(faulthandler, "dump_traceback_later", start)
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", running.clear)
    return running


def test_a_poll_does_not_start_a_stopped_timer(timer):
    with Watchdog(5.0) as watchdog:
        watchdog.poll()
        assert timer == []  # compilation before the first step may take any time
        watchdog.before_step(1)
        assert timer == [5.0]
        watchdog.during("rolling back")
        watchdog.poll()
        assert timer == []
        watchdog.during("validating")  # may precede the first step
        assert timer == [5.0]
    watchdog.poll()
    assert timer == []


@pytest.mark.slow
def test_a_hanging_training_run_ends(tmp_path):
    argv = [
        sys.executable,
        "-c",
        HANGING_RUN,
        *tiny.flags(tmp_path / "run", training__stall_seconds=3),
    ]
    result = subprocess.run(
        argv, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 1 and "step 2 " in result.stderr
    assert (
        "Timeout (0:00:03)!" in result.stderr and 'File "<string>", line 8 in hang' in result.stderr
    )
