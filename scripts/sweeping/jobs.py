"""A trial under way: its process, and what it has to say."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from absl import logging

from scripts.sweeping.ledger import Attempt
from scripts.sweeping.tasks import Task

LAST_LINES = 5  # of a failed trial's log
STOPPED = (130, -signal.SIGTERM)  # how commands end on SIGTERM that have nothing to save, or have hardly begun


class Job:
    """One attempt at a trial, as a child process in a session of its own: Ctrl-C in a terminal is for the sweep alone.

    Attributes:
      slot: which of the sweep's simultaneous jobs it is.
      reported: the steps whose values the ledger has.
      hopeless: whether the pruner has given it up.
      lost: whether another process has taken over.
    """

    def __init__(self, task: Task, attempt: Attempt, slot: int, jobs: int, logs: Path) -> None:
        self.task, self.attempt, self.slot = task, attempt, slot
        self.environment = _environment(slot, jobs)
        self.log, self.log_start = logs / f"{attempt.trial:04}.txt", 0  # earlier attempts have written before that
        self.process: subprocess.Popen | None = None
        self.reported: set[int] = set()
        self.hopeless = self.lost = self.stopping = self.told = False
        self.beaten = self.started = time.monotonic()

    @property
    def seconds(self) -> float:
        """For how long its process has been at work."""
        return 0.0 if self.process is None else time.monotonic() - self.started

    def advance(self) -> bool:
        """Starts the process as soon as that is possible. Returns whether the attempt has ended.

        Raises:
          UserError: the process cannot be started with the trial's values.
        """
        trial = self.attempt.trial
        if self.process is not None:
            return self.process.poll() is not None
        # Complete, if it is, by a process that a killed sweep had left.
        if self.stopping or self.task.is_complete(trial):
            return True
        if holder := self.task.holder(trial):
            if not self.told:
                logging.warning("Trial %d waits: %s", trial, holder)
            self.told = True
            return False
        self._start()
        return False

    def _start(self) -> None:
        module, *flags = self.task.command(self.attempt.trial, self.attempt.values)
        output = self.task.output(self.attempt.trial)
        self.log.parent.mkdir(exist_ok=True)
        self.started = time.monotonic()
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(self.log.open("ab"))
            self.log_start = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "scripts.sweeping.tethered", module, *flags],
                stdin=subprocess.PIPE,
                stdout=log if output is None else stack.enter_context(output.open("wb")),
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )

    def stop(self) -> None:
        """Asks the process to save and end."""
        if self.process is not None and not self.stopping:
            self.process.terminate()
        self.stopping = True

    def close(self) -> None:
        if self.process is not None:
            self.process.stdin.close()

    @property
    def error(self) -> str:
        """How it failed, with its last lines; empty if it did not: it is complete, or was asked to stop."""
        code = self.process.returncode if self.process is not None else 0
        if code == 0 or (self.stopping and code in STOPPED):
            return ""
        lines = self.log.read_bytes()[self.log_start :].decode(errors="replace").splitlines()[-LAST_LINES:]
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        return "\n".join([f"{how}; the end of {self.log}:", *lines])


def _environment(slot: int, jobs: int) -> dict[str, str]:
    """Of the job in this slot. $CUDA_VISIBLE_DEVICES is shared out if it names as many GPUs as there are jobs."""
    environment = dict(os.environ)
    devices = [device for device in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if device]
    if jobs > 1 and len(devices) >= jobs:
        share = len(devices) // jobs
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices[slot * share : (slot + 1) * share])
    return environment
