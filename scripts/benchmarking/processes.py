"""The processes of the systems in a comparison.

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
# `support/runtime.py` sets the same for our commands. It saves PyTorch a quarter of a step's CPU
# time.
MALLOC = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**63 - 1),
    "MALLOC_ARENA_MAX": "1",
}
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# A pause before each repetition: OpenMP's threads spin for milliseconds after the previous one.
SETTLE_SECONDS = 0.05


class Contender(NamedTuple):
    """A system that competes in a task.

    Attributes:
      name: its name in tables.
      prepare: MODULE:FUNCTION, which prepares the system for a task.
      options: entries that the system adds to the task.
      is_peer: true for systems of other projects.
      is_exact: true if it searches the whole vocabulary. Peers are compared only with our systems
          that are exact.
    """

    name: str
    prepare: str
    options: Mapping[str, Any] = {}
    is_peer: bool = False
    is_exact: bool = True


class Failed(UserError):
    """Raised if a worker fails."""


class BenchmarkWorker:
    """The process of one system, ready for its task.

    Attributes:
      contender: the system.
      tokens: the number of tokens of a repetition.
      version: the version of the library.
      seconds: the time of each repetition until now.
    """

    def __init__(
        self, contender: Contender, task: Mapping[str, Any], process: subprocess.Popen, log: IO[str]
    ):
        """Sends the task. `log` is the file of the process's standard error.

        Raises Failed if the system cannot prepare.
        """
        self.contender = contender
        self.seconds = []
        self._process = process
        self._log = log
        # The worker reads its task first, and answers when it is ready.
        answer = self._ask({**task, **contender.options})
        if "error" in answer:
            raise Failed(answer["error"])
        self.tokens = answer["tokens"]
        self.version = answer["version"]

    @property
    def rate(self) -> float:
        """Tokens per second, by the median of the repetitions."""
        return self.tokens / statistics.median(self.seconds)

    def repeat(self) -> None:
        """Adds the seconds of one more repetition. Raises Failed if the process ends instead."""
        time.sleep(SETTLE_SECONDS)
        self.seconds.append(self._ask("repeat"))

    def _ask(self, message: Any) -> Any:
        """Returns the answer to a message.

        Raises Failed with the last line of the log if the process has ended.
        """
        # A process that has ended breaks the pipe; the reason is in its log.
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(message), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if answer:
            return json.loads(answer)
        # No answer: the process has ended.
        code = self._process.wait()
        self._log.seek(0)
        lines = [line.strip() for line in self._log if line.strip()]
        raise Failed(": ".join([f"exit code {code}", *lines[-1:]]))


@contextlib.contextmanager
def running(
    python: str, contender: Contender, task: Mapping[str, Any]
) -> Iterator[BenchmarkWorker]:
    """Runs a system in a process of the interpreter `python`. The end of the block kills it."""
    command = [python, "-m", "scripts.benchmarking.worker", contender.prepare]
    # Some libraries count cores before the worker restricts itself to some of them.
    threads = dict.fromkeys(THREAD_VARIABLES, str(task["threads"]))
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
            env=os.environ | MALLOC | threads,
        ) as process,
    ):
        try:
            yield BenchmarkWorker(contender, task, process, log)
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
    # Links are not resolved: a link in an environment selects the packages of the environment.
    return os.path.abspath(program)
