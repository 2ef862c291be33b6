"""Groups of checks for the command's tests, each run in another process."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from scripts.verification.outcomes import Outcome, Speed
from transformer.support.errors import UserError

SPEED = Speed("step of base", 0.1, 10.0, 1.0)


def passes() -> Iterator[Outcome]:
    precision = os.environ.get("JAX_DEFAULT_MATMUL_PRECISION")
    yield Outcome(f"precision {precision}, JAX {'jax' in sys.modules}", 0.0, 0.0)


def raises() -> Iterator[Outcome]:
    yield Outcome("first", 0.0, 0.0)
    raise RuntimeError("CUDA_ERROR_UNKNOWN\nmore")


def crashes() -> Iterator[Outcome]:
    yield Outcome("first", 0.0, 0.0)
    os.kill(os.getpid(), signal.SIGSEGV)


def is_refused() -> Iterator[Outcome]:
    raise UserError("the disk is full")
    yield


def hangs(folder: str) -> Iterator[int]:
    with tempfile.TemporaryDirectory(dir=folder), subprocess.Popen(["sleep", "60"]) as child:
        try:
            yield child.pid
            time.sleep(60)
        finally:
            child.kill()


def measures(is_quick: bool) -> Iterator[Speed]:
    yield SPEED


def runs_out_of_memory(is_quick: bool) -> Iterator[Speed]:
    yield SPEED
    raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory")
