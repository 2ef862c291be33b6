"""The process of a system that is measured. It runs in the environments of peers too, so it needs
nothing but Python.

    python -m scripts.benchmarking.worker MODULE:FUNCTION

The function prepares the system: it maps a task to a `Prepared`.

Protocol, one JSON value a line. The worker reads its task, prepares, warms up, and writes
{"tokens": per repetition, "version": of the library}, or {"error": the reason}. For each further
line it runs one repetition untimed and one timed, and writes the seconds of the timed one. It ends
with its input. The output of libraries goes to standard error.
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

# repetitions that do not count: the first compiles, the second finds memory already allocated
WARM_UPS = 2


Task = dict[str, Any]


class Prepared(NamedTuple):
    """A system that is ready: one repetition of its task, the tokens of a repetition, and the
    library's version.
    """

    repeat: Callable[[], object]
    tokens: int
    version: str


def serve(prepare: Callable[[Task], Prepared]) -> None:
    """Runs a worker.

    `prepare` gets the task; this process is restricted to the task's `threads` where possible.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(message: Any) -> None:
        print(json.dumps(message), file=answers, flush=True)

    try:
        task = json.loads(sys.stdin.readline())
        if hasattr(os, "sched_setaffinity"):  # libraries derive from it how many threads to start
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: task["threads"]])
        prepared = prepare(task)
        for _ in range(WARM_UPS):
            prepared.repeat()
    except Exception as error:
        traceback.print_exc()
        answer({"error": " ".join([f"{type(error).__name__}:", *str(error).splitlines()[:1]])})
        return
    release_memory()
    answer({"tokens": prepared.tokens, "version": prepared.version})
    for _ in sys.stdin:
        prepared.repeat()  # fills caches and gets memory, as the repetitions before it would
        began = time.perf_counter()
        prepared.repeat()
        seconds = time.perf_counter() - began
        release_memory()
        answer(seconds)


def release_memory() -> None:
    """Returns freed memory to the system, if the C library can: six systems that wait with theirs
    may need 24 GB.
    """
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


if __name__ == "__main__":
    serve(pkgutil.resolve_name(sys.argv[1]))
