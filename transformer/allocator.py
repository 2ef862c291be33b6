"""Memory that was freed, kept for whoever asks next."""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8  # names and numbers of glibc's malloc.h


def keep_freed_memory() -> None:
    """Tells glibc's malloc to give nothing back to the kernel; a C library without `mallopt` stays as it is.

    XLA on CPUs asks for its buffers anew at every step. Those above 32 MiB would each time come from the kernel, which
    clears them page by page: a fifth of the CPU time of a step of 3072 tokens by the model of `configs/multi30k.py`.
    One arena, since memory that is free in one is of no use to threads of another. The price is a process that stays as
    large as it once was: 2.8 GB there, where it had 1.3.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1), (M_ARENA_MAX, 1)):
        mallopt(option, value)
