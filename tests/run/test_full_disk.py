"""Runs on a full file system end with one line, damage nothing, and resume once there is space."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run.full_disk import ALONE, SIZES, may_mount

pytestmark = pytest.mark.slow  # five runs


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    """Returns the JSON that `tests/run/full_disk.py` prints."""
    if reason := may_mount():
        pytest.skip(f"needs a file system of its own: {reason}")
    argv = [
        *ALONE,
        sys.executable,
        "-m",
        "tests.run.full_disk",
        str(tmp_path_factory.mktemp("full")),
    ]
    done = subprocess.run(argv, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("size", SIZES)
def test_a_full_disk_ends_the_run_in_one_line(found, size):
    full = found[size]
    assert full["code"] == 2 and "Traceback" not in full["errors"]
    # lines of the log have a time
    errors = [line for line in full["errors"].splitlines() if not line[:2].isdecimal()]
    assert len(errors) == 1 and errors[0].startswith("error: the disk is full (")


@pytest.mark.parametrize("size", SIZES)
def test_a_full_disk_damages_no_existing_file(found, size):
    full = found[size]
    assert full["loaded"] == full["saved"][-1:]
    assert full["lines"] == list(range(1, len(full["lines"]) + 1))


@pytest.mark.parametrize("size", SIZES)
def test_with_space_the_run_resumes_and_gives_the_usual_results(found, size):
    full = found[size]
    assert full["code_with_room"] == 0, full["errors_with_room"]
    assert ("Resuming from the checkpoint of step" in full["errors_with_room"]) == bool(
        full["saved"]
    )
    assert full["same_parameters"] and full["same_record"] and full["same_checkpoints"]


def test_the_two_disks_are_full_before_the_first_and_after_several_checkpoints(found):
    none, some = (found[size]["saved"] for size in SIZES)
    assert none == [] and "step 1  loss" not in found[SIZES[0]]["errors"]
    assert some and some != list(range(1, some[-1] + 1))
