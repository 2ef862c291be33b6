"""Processes of the systems that are compared, their interpreter and their threads.

`scripts/benchmarking/worker.py` describes their protocol.
"""

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from transformer.support.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
# The peers get what `support/runtime.py` sets for our commands: it saves PyTorch a quarter of a
# step's CPU time.
MALLOC = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**63 - 1),
    "MALLOC_ARENA_MAX": "1",
}
# before each repetition: OpenMP's threads spin for milliseconds after the last one
SETTLE_SECONDS = 0.05


class Contender(NamedTuple):
    """A system that competes in a task: its name, the function that prepares it, and what it adds
    to the task.

    `is_exact`: whether it searches the whole vocabulary. Peers are compared only with our systems
        that do.
    """

    name: str
    prepare: str
    options: Mapping[str, Any] = {}
    is_peer: bool = False
    is_exact: bool = True


class Failed(UserError):
    """Raised if a worker fails."""


class Worker:
    """The process of one system, ready for its task. Raises Failed if it cannot prepare.

    It has the tokens of a repetition, the version of the library, and the seconds of each
    repetition until now. `log` is the file with the process's standard error.
    """

    def __init__(
        self, contender: Contender, task: Mapping[str, Any], process: subprocess.Popen, log: IO[str]
    ):
        self.contender = contender
        self.seconds = []
        self._process = process
        self._log = log
        ready = self._ask({**task, **contender.options})
        if "error" in ready:
            raise Failed(ready["error"])
        self.tokens = ready["tokens"]
        self.version = ready["version"]

    @property
    def rate(self) -> float:
        """Tokens per second, by the median."""
        return self.tokens / statistics.median(self.seconds)

    def repeat(self) -> None:
        """Adds the seconds of one more repetition. Raises Failed if the process ends instead."""
        time.sleep(SETTLE_SECONDS)
        self.seconds.append(self._ask("repeat"))

    def _ask(self, message: Any) -> Any:
        """Returns the answer to a message.

        If the process has ended, raises Failed with its last line of errors.
        """
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(message), file=self._process.stdin, flush=True)
        if line := self._process.stdout.readline():
            return json.loads(line)
        code = self._process.wait()
        self._log.seek(0)
        lines = [line.strip() for line in self._log if line.strip()]
        raise Failed(": ".join([f"exit code {code}", *lines[-1:]]))


@contextlib.contextmanager
def running(python: str, contender: Contender, task: Mapping[str, Any]) -> Iterator[Worker]:
    """Runs a system in a process, which this interpreter starts and the end of the block kills."""
    command = [python, "-m", "scripts.benchmarking.worker", contender.prepare]
    pipe = subprocess.PIPE
    # For libraries that count cores before the worker restricts itself to some.
    threads = dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(task["threads"])
    )
    environment = os.environ | MALLOC | threads
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=log, text=True, cwd=ROOT, env=environment
        ) as process,
    ):
        try:
            yield Worker(contender, task, process, log)
        finally:
            process.kill()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()


def find_interpreter(path: str | None) -> str | None:
    """Returns the absolute path of the peers' Python.

    Raises UserError if there is none at `path`.
    """
    if path is None:
        return None
    program = shutil.which(path)
    if program is None:
        raise UserError(
            f"--peers={path}: no such interpreter; `make bench` makes .venv-bench/bin/python"
        )
    return os.path.abspath(program)  # links stay: one in an environment selects its packages
