"""The environment of a run: commit, package versions, devices and command line."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax

REPOSITORY = Path(__file__).resolve().parent.parent


def describe_environment() -> dict[str, Any]:
    """Returns commit, package versions, devices and command line. The commit is None outside a git repository."""
    commit, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "--untracked-files=no")
    requirements = (REPOSITORY / "requirements.txt").read_text(encoding="utf-8").split()
    packages = [line.partition("==")[0].partition("[")[0] for line in requirements if "==" in line]
    return {
        "started": now(),
        "commit": commit,
        "uncommitted_changes": None if changes is None else changes != "",
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "devices": [device.device_kind for device in jax.devices()],
        "processes": jax.process_count(),
        "packages": {name: importlib.metadata.version(name) for name in packages},
    }


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _git(*arguments: str) -> str | None:
    try:
        result = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()
