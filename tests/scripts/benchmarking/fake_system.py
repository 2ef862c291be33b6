"""Workers that need nothing: contenders of `speeds.compare`."""

import os
import time
from typing import Any

from scripts.benchmarking.worker import Prepared


def prepare(task: dict[str, Any]) -> Prepared:
    """Prepares a system that writes its letter into the file `task["trace"]` at each repetition."""
    if task.get("fails"):
        raise ValueError("cannot be\nprepared")
    print("libraries print to standard output")

    def repeat() -> None:
        with open(task["trace"], "a", encoding="ascii") as trace:
            trace.write(task["letter"])
            repetitions = os.fstat(trace.fileno()).st_size
        time.sleep(0.001)
        if task.get("dies_after", 1 << 30) < repetitions:
            os._exit(3)

    return Prepared(repeat, task.get("tokens", 10), f"Fake {len(os.sched_getaffinity(0))}")
