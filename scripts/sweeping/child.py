"""Runs a module as a child process that ends with its parent.

    python -m scripts.sweeping.child MODULE [FLAGS]

Standard input is a pipe that the parent keeps open. The pipe closes when the parent dies, even by
SIGKILL. The child then sends itself SIGTERM, so that training saves a checkpoint and releases its
workdir.
"""

import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer.support import runtime
from transformer.support.errors import UserError

# Lines of a failed child's log in an error message.
LAST_LINES = 5


def start(module: str, flags: Sequence[str], **options: Any) -> subprocess.Popen:
    """Starts the module as a child process, with options of `subprocess.Popen`.

    The child gets a new session, so that Ctrl-C in a terminal reaches only the parent.
    """
    command = [sys.executable, "-m", "scripts.sweeping.child", module, *flags]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, **options)


def output_of(name: str, module: str, flags: Sequence[str], log: Path, **options: Any) -> str:
    """Runs the module as a child process until its end, and returns its standard output.

    Standard error is appended to `log`. The child ends with this process. Raises UserError, which
    begins with `name` and has the last lines of the log, if the child fails.
    """
    with log.open("ab") as errors:
        start_of_log = errors.tell()  # the output of earlier attempts ends here
        process = start(module, flags, stdout=subprocess.PIPE, stderr=errors, **options)

    # If this process is interrupted, the child must end too, before a lock is released.
    with process:
        try:
            output = process.stdout.read()
            process.wait()
        finally:
            process.terminate()  # without effect on a child that has ended
            process.wait()  # it saves before it ends
    if process.returncode:
        lines = " ".join(last_lines(log, start_of_log))
        raise UserError(f"{name}: {module} failed; the end of {log}: {lines}")
    return output.decode()


def last_lines(log: Path, start: int) -> list[str]:
    """Returns the last lines of a log, without the bytes before `start`."""
    text = log.read_bytes()[start:].decode(errors="replace")
    return text.splitlines()[-LAST_LINES:]


def _terminate_with_parent() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    # The module calls this again, but too late: with two threads malloc would have two arenas.
    runtime.set_up()
    threading.Thread(target=_terminate_with_parent, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
