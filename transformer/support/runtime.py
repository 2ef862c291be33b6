"""The operating system under a command: its memory and standard streams."""

import gc
import importlib.metadata
import importlib.util
import os
import signal
import sys
from typing import Any

# They announce that the machine will be taken away: SIGTERM, and what `--signal` of Slurm jobs
# often names.
TERMINATIONS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
# new objects between two searches for garbage; Python's 700 cost a tenth of a start
GC_THRESHOLD = 50_000
# From glibc's malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4
M_ARENA_MAX = -8


def set_up() -> None:
    """Prepares the process for a command. To be called before any thread starts."""
    os.environ.pop("JAX_ENABLE_X64", None)  # the arrays of this code are of 32 bits
    open_closed_streams()
    keep_freed_memory()
    gc.set_threshold(GC_THRESHOLD)  # importing and tracing make many objects that stay

    def report(unraisable: Any) -> None:
        # Orbax's threads raise this after a failure, which has already been reported.
        if str(unraisable.exc_value) != "Event loop is closed":
            sys.__unraisablehook__(unraisable)

    sys.unraisablehook = report


def open_closed_streams() -> None:
    """Replaces closed standard streams by the null device.

    Opened files would take their descriptors.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor, which is this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def keep_freed_memory() -> None:
    """Makes glibc's malloc keep freed memory, if JAX computes on CPUs. Other C libraries are left
    unchanged.

    XLA's CPU backend allocates its buffers at every step. malloc takes those above 32 MiB from the
    kernel, which clears them page by page: a fifth of a step's CPU time for `configs/multi30k.py`
    with 3072 tokens. A single arena lets threads reuse each other's memory; running threads keep
    theirs. In return the process keeps its largest size: 2.8 GB there instead of 1.3.
    """
    import ctypes  # it opens a file, which would take the descriptor of a closed stream

    # JAX's default backend is predicted: asking JAX would start the backend, and with it threads.
    if platforms := os.environ.get("JAX_PLATFORMS"):
        is_cpu = platforms.split(",")[0] == "cpu"
    else:
        is_cpu = not importlib.metadata.entry_points(
            group="jax_plugins"
        ) and not importlib.util.find_spec("libtpu")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if is_cpu and mallopt is not None:
        for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1), (M_ARENA_MAX, 1)):
            mallopt(option, value)
