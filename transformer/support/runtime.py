"""The operating system under a command: its memory and standard streams."""

import gc
import importlib.metadata
import importlib.util
import os
import signal
import sys
from typing import Any

# Signals that announce the end of the machine: SIGTERM, and the usual ones of Slurm's `--signal`.
TERMINATIONS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
# New objects between two searches for garbage. Python's 700 cost a tenth of a start.
GC_THRESHOLD = 50_000
# From glibc's malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4
M_ARENA_MAX = -8


def set_up() -> None:
    """Prepares the process for a command. Must be called before any thread starts."""
    # The arrays of this code have 32 bits.
    os.environ.pop("JAX_ENABLE_X64", None)
    open_closed_streams()
    keep_freed_memory()
    # Importing and tracing make many objects that stay.
    gc.set_threshold(GC_THRESHOLD)

    def report(unraisable: Any) -> None:
        # Orbax's threads raise this after a failure, which has already been reported.
        if str(unraisable.exc_value) != "Event loop is closed":
            sys.__unraisablehook__(unraisable)

    sys.unraisablehook = report


def open_closed_streams() -> None:
    """Replaces closed standard streams by the null device.

    Otherwise the next opened files would get the descriptors of the streams.
    """
    streams = [("stdin", "r"), ("stdout", "w"), ("stderr", "w")]
    for number, (name, mode) in enumerate(streams):
        try:
            os.fstat(number)
        except OSError:
            # The new file gets the lowest free descriptor, which is this one.
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def keep_freed_memory() -> None:
    """Makes glibc's malloc keep freed memory, if JAX computes on CPUs.

    Other C libraries are left unchanged. XLA's CPU backend allocates its buffers at every step.
    malloc takes buffers above 32 MiB from the kernel, which clears them page by page: a fifth of a
    step's CPU time for `configs/multi30k.py` with 3072 tokens. A single arena lets threads reuse
    each other's memory; running threads keep theirs. In return the process keeps its largest size:
    2.8 GB there instead of 1.3.
    """
    # Imported here, because it opens a file, which could get the descriptor of a closed stream.
    import ctypes

    # JAX's default backend is predicted: asking JAX would start the backend, and with it threads.
    platforms = os.environ.get("JAX_PLATFORMS")
    if platforms:
        is_cpu = platforms.split(",")[0] == "cpu"
    else:
        plugins = importlib.metadata.entry_points(group="jax_plugins")
        is_cpu = not plugins and not importlib.util.find_spec("libtpu")
    # Other C libraries may lack the function.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if is_cpu and mallopt is not None:
        for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1), (M_ARENA_MAX, 1)):
            mallopt(option, value)
