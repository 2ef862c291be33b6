"""The process of a system in a benchmark.

    python -m scripts.benchmarking.worker MODULE:FUNCTION

The function prepares the system: it maps a task to a `Prepared`. This module also runs in the
environments of peers, so it imports only the standard library.

The protocol has one JSON value per line. The worker reads its task, prepares, warms up, and writes
{"tokens": tokens of a repetition, "version": version of the library}, or {"error": reason}. For
each further line it runs an untimed and a timed repetition, and writes the seconds of the timed
one. It ends with its input. The output of libraries goes to standard error.
"""

import ctypes
import json
import os
import pkgutil
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

# Repetitions that do not count: the first compiles, the second finds memory already allocated.
WARM_UPS = 2

Task = dict[str, Any]


class Prepared(NamedTuple):
    """A system that is ready for its task.

    Attributes:
      repeat: runs one repetition of the task.
      tokens: the number of tokens of a repetition.
      version: the name and the version of the library.
    """

    repeat: Callable[[], object]
    tokens: int
    version: str


def serve(prepare: Callable[[Task], Prepared]) -> None:
    """Runs a worker, on the cores that the task's `threads` allow where the system can do this."""
    # Libraries may print to standard output, so answers get a copy of it, and the original becomes
    # standard error.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(message: Any) -> None:
        print(json.dumps(message), file=answers, flush=True)

    try:
        task = json.loads(sys.stdin.readline())
        if hasattr(os, "sched_setaffinity"):
            # Libraries start a thread for each core of the process.
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, cores[: task["threads"]])
        prepared = prepare(task)
        for _ in range(WARM_UPS):
            prepared.repeat()
    except Exception as error:
        traceback.print_exc()
        first_line = str(error).splitlines()[:1]
        answer({"error": " ".join([f"{type(error).__name__}:", *first_line])})
        return
    release_memory()
    answer({"tokens": prepared.tokens, "version": prepared.version})
    for _ in sys.stdin:
        prepared.repeat()  # fills the caches and allocates memory
        began = time.perf_counter()
        prepared.repeat()
        seconds = time.perf_counter() - began
        release_memory()
        answer(seconds)


def release_memory() -> None:
    """Returns freed memory to the system, if the C library can.

    Otherwise six systems that wait for their turns may hold 24 GB.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


if __name__ == "__main__":
    serve(pkgutil.resolve_name(sys.argv[1]))
