"""glibc's malloc, set up to keep the memory that a training step frees."""

import ctypes
import importlib.metadata
import importlib.util
import os

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8  # from glibc's malloc.h


def keep_freed_memory() -> None:
    """Makes glibc's malloc keep freed memory, if JAX computes on CPUs. Other C libraries are left unchanged.

    XLA's CPU backend allocates its buffers at every step. malloc takes those above 32 MiB from the kernel, which clears
    them page by page: a fifth of a step's CPU time for `configs/multi30k.py` with 3072 tokens. A single arena lets
    threads reuse each other's memory. In return the process keeps its largest size: 2.8 GB there instead of 1.3.

    Call it before any thread starts, since running threads keep their arenas.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or not _computes_on_cpu():
        return
    for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1), (M_ARENA_MAX, 1)):
        mallopt(option, value)


def _computes_on_cpu() -> bool:
    """Predicts whether JAX's default backend is the CPU. Asking JAX would start the backend, and with it threads."""
    if platforms := os.environ.get("JAX_PLATFORMS"):
        return platforms.split(",")[0] == "cpu"
    return not importlib.metadata.entry_points(group="jax_plugins") and importlib.util.find_spec("libtpu") is None
