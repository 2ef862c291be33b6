"""Fixtures of the tests of import and export."""

from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

PYTHON = REPOSITORY / ".venv-interop" / "bin" / "python"


@pytest.fixture(scope="session")
def interop_python() -> Path:
    """Returns the Python with the other toolkits.

    Tests that need it are marked `slow`, and skipped without it.
    """
    if not PYTHON.exists():
        pytest.skip(f"{PYTHON} is missing: make interop")
    return PYTHON
