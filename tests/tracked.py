"""The files of the repository, as opposed to those that a user has added."""

import subprocess

import pytest


def tracked_files(pattern: str) -> list[str]:
    """Returns the tracked files that match a glob pattern, whose * does not match /.

    Skips the test outside git.
    """
    listed = subprocess.run(
        ["git", "ls-files", f":(glob){pattern}"], capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("needs the git repository")
    return listed.stdout.splitlines()
