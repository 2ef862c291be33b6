"""Runs on a file system that is full: how they end, what they leave, and that they go on once there is room."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run.full_disk import ALONE, SIZES, may_mount

pytestmark = pytest.mark.slow  # five runs


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    """What `tests/run/full_disk.py` finds."""
    if reason := may_mount():
        pytest.skip(f"needs a file system of its own: {reason}")
    argv = [*ALONE, sys.executable, "-m", "tests.run.full_disk", str(tmp_path_factory.mktemp("full"))]
    done = subprocess.run(argv, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("size", SIZES)
def test_a_full_disk_ends_the_run_in_one_line(found, size):
    full = found[size]
    assert full["code"] == 2 and "Traceback" not in full["errors"]
    errors = [line for line in full["errors"].splitlines() if not line[:2].isdecimal()]  # lines of the log have a time
    assert len(errors) == 1 and errors[0].startswith("error: the disk is full (")


@pytest.mark.parametrize("size", SIZES)
def test_a_full_disk_harms_nothing_that_was_there(found, size):
    full = found[size]
    assert full["loaded"] == full["saved"][-1:]
    assert full["lines"] == list(range(1, len(full["lines"]) + 1))


@pytest.mark.parametrize("size", SIZES)
def test_with_room_the_run_goes_on_as_if_there_had_always_been_some(found, size):
    full = found[size]
    assert full["code_with_room"] == 0, full["errors_with_room"]
    assert ("Resuming from the checkpoint of step" in full["errors_with_room"]) == bool(full["saved"])
    assert full["same_parameters"] and full["same_record"] and full["same_checkpoints"]


def test_the_sizes_fill_up_before_the_first_checkpoint_and_after_some_were_deleted(found):
    none, some = (found[size]["saved"] for size in SIZES)
    assert none == [] and "step 1/" not in found[SIZES[0]]["errors"]
    assert some and some != list(range(1, some[-1] + 1))
