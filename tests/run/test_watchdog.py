"""A process that hangs is ended, with its stacks; one that works or pauses is not."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.tiny import flags

SCRIPT = """
import time
from transformer.run.watchdog import Watchdog
with Watchdog({seconds}) as watchdog:
    for _ in range(4):
        time.sleep({sleep})
        watchdog.{call}()
print("done")
"""


HANGING_RUN = """
import time
from transformer import cli, train
from transformer.training.step import TrainStep
update = TrainStep.__call__
def hang():
    time.sleep(600)
TrainStep.__call__ = lambda self, state, batches: hang() if state.step == 2 else update(self, state, batches)
cli.run(train.make_parser(), train.main)
"""


def run(seconds: float, sleep: float, call: str) -> subprocess.CompletedProcess:
    script = SCRIPT.format(seconds=seconds, sleep=sleep, call=call)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)


def test_a_process_without_a_beat_ends_with_its_stacks():
    result = run(seconds=0.5, sleep=30.0, call="beat")
    assert (result.returncode, result.stdout) == (1, "")
    assert "Timeout (0:00:00.500000)!" in result.stderr and "line 6 in <module>" in result.stderr


# With a limit of a second, two pass in all, and 1.8 without a beat once it is paused.
@pytest.mark.parametrize(("seconds", "sleep", "call"), [(1.0, 0.5, "beat"), (0.0, 0.1, "beat"), (1.0, 0.6, "pause")])
def test_a_process_that_beats_or_pauses_or_has_no_limit_goes_on(seconds, sleep, call):
    result = run(seconds, sleep, call)
    assert (result.returncode, result.stdout) == (0, "done\n")


def test_a_training_run_that_hangs_is_ended(tmp_path):
    argv = [sys.executable, "-c", HANGING_RUN, *flags(tmp_path / "run", training__stall_seconds=5)]
    result = subprocess.run(argv, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300)
    assert result.returncode == 1 and "step 2/" in result.stderr
    assert "Timeout (0:00:05)!" in result.stderr and 'File "<string>", line 7 in hang' in result.stderr
