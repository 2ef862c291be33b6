"""Groups of checks for the command's tests, each run in a process of its own."""

import os
import signal
from collections.abc import Iterator

from scripts.verification.outcomes import Outcome, Speed

SPEED = Speed("step of base", 0.1, 10.0, 1.0)


def passes() -> Iterator[Outcome]:
    yield Outcome(f"precision {os.environ.get('JAX_DEFAULT_MATMUL_PRECISION')}", 0.0, 0.0)


def raises() -> Iterator[Outcome]:
    yield Outcome("first", 0.0, 0.0)
    raise RuntimeError("CUDA_ERROR_UNKNOWN\nmore")


def crashes() -> Iterator[Outcome]:
    yield Outcome("first", 0.0, 0.0)
    os.kill(os.getpid(), signal.SIGSEGV)


def measures(is_quick: bool) -> Iterator[Speed]:
    yield SPEED


def runs_out_of_memory(is_quick: bool) -> Iterator[Speed]:
    yield SPEED
    raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory")
