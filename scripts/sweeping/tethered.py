"""Runs a command that is not to outlive the process that started it.

    python -m scripts.sweeping.tethered MODULE [FLAGS]

Standard input has to be a pipe that its parent keeps open. When that ends, because the parent has died however
suddenly, the command gets SIGTERM: training then saves, and lets go of its workdir.
"""

import os
import runpy
import signal
import sys
import threading


def _watch() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_watch, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
