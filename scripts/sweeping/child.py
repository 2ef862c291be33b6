"""Runs a module as a child process that ends with its parent.

    python -m scripts.sweeping.child MODULE [FLAGS]

Standard input is a pipe that the parent keeps open. It closes when the parent dies, even by SIGKILL. The child then
sends itself SIGTERM, so that training saves a checkpoint and releases its workdir.
"""

import os
import runpy
import signal
import sys
import threading


def _terminate_with_parent() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_terminate_with_parent, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
