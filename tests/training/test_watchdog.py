"""A process that hangs is ended, with its stacks; one that works or pauses is not."""

import subprocess
import sys

import pytest

SCRIPT = """
import time
from transformer.training.watchdog import Watchdog
with Watchdog({seconds}) as watchdog:
    for _ in range(4):
        time.sleep({sleep})
        watchdog.{call}()
print("done")
"""


def run(seconds: float, sleep: float, call: str) -> subprocess.CompletedProcess:
    script = SCRIPT.format(seconds=seconds, sleep=sleep, call=call)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)


def test_a_process_without_a_beat_ends_with_its_stacks():
    result = run(seconds=0.5, sleep=30.0, call="beat")
    assert (result.returncode, result.stdout) == (1, "")
    assert "Timeout (0:00:00.500000)!" in result.stderr and "line 6 in <module>" in result.stderr


# With a limit of a second, 2.4 seconds pass without a beat once it is paused.
@pytest.mark.parametrize(("seconds", "sleep", "call"), [(20.0, 0.01, "beat"), (0.0, 0.1, "beat"), (1.0, 0.6, "pause")])
def test_a_process_that_beats_or_pauses_or_has_no_limit_goes_on(seconds, sleep, call):
    result = run(seconds, sleep, call)
    assert (result.returncode, result.stdout) == (0, "done\n")
