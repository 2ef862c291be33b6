"""Workers, each of which claims trials of a study and runs them in child processes, one after the
other.
"""

import contextlib
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from absl import logging
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import Trial, TrialState

from scripts.sweeping import child
from scripts.sweeping.results import show_value, summary
from scripts.sweeping.study import GRACE_PERIOD, HEARTBEAT, STORAGE_ERRORS, SweepStudy, reason
from scripts.sweeping.tasks import Task
from transformer.config import cli
from transformer.support.errors import UserError
from transformer.workdir import InUse, lock_workdir

POLL = 0.5  # seconds between checks of a child process
OUTAGE = 900  # seconds for which calls to the storage are retried; the trials run on meanwhile
# in the messages of SQLite and PostgreSQL; retrying does not help
NO_SPACE = ("disk is full", "No space left")
INTERRUPTED = (0, 130, -signal.SIGTERM)  # exit codes of commands that were interrupted

T = TypeVar("T")
Starter = Callable[..., Any]  # like `child.start`


@dataclass
class Worker:
    """A loop that claims and runs trials. Each worker has a thread; `stop` interrupts it."""

    study: SweepStudy
    task: Task
    environment: dict[str, str]
    processors: set[int]
    stop: threading.Event
    start: Starter

    def run(self) -> None:
        """Runs trials until none is waiting or running in any process, or until `stop` is set."""
        if self.processors:
            # of this thread, and so of the processes that it starts
            os.sched_setaffinity(0, self.processors)
        while not self.stop.is_set():
            if trial := self._retry(self.study.claim):
                number = trial.user_attrs["trial"]
                shown = ", ".join(
                    f"{key}={show_value(value)}" for key, value in trial.params.items()
                )
                logging.info("Trial %d: %s", number, shown)
                logging.info("%s", summary(self._retry(self.study.trials), self.study.sweep))
                try:
                    self._run_trial(number, trial)
                # after an outage of the storage, or while this machine slept
                except UpdateFinishedTrialError:
                    logging.warning("Trial %d was taken by another process.", number)
            elif all(trial.state.is_finished() for trial in self._retry(self.study.trials)):
                return
            else:
                message = (
                    "All trials have started. Each is taken over after %d s without a heartbeat."
                )
                logging.log_every_n_seconds(logging.INFO, message, 600, GRACE_PERIOD)
                self.stop.wait(HEARTBEAT)

    def _run_trial(self, number: int, trial: Trial) -> None:
        pruned = False
        error = ""
        try:
            self._wait_for_workdir(number, trial)
            if not (self.stop.is_set() or self.task.is_complete(number)):
                pruned, error = self._run_process(number, trial)
        except UserError as invalid_values:
            error = str(invalid_values)
        if cli.DISK_IS_FULL in error:
            self._retry(self.study.requeue, trial)
            raise UserError(f"trial {number}: {error.splitlines()[-1].removeprefix('error: ')}")
        objective = self.study.sweep.objective
        value = None
        if self.task.is_complete(number):
            finite = [
                value
                for value in self.task.measured(number, objective).values()
                if math.isfinite(value)
            ]
            value = self.study.sweep.best(finite, default=None)
            error = "" if finite else f"{objective} was never finite"
        if error:
            state = TrialState.FAIL
            self._retry(trial.set_user_attr, "error", error)
            logging.error("Trial %d failed: %s", number, error)
        elif value is not None:
            state = TrialState.COMPLETE
            logging.info("Trial %d is complete: %s %.4g", number, objective, value)
        elif pruned:
            state = TrialState.PRUNED
            logging.info("Trial %d was pruned.", number)
        else:
            self._retry(self.study.requeue, trial)
            logging.warning("Trial %d was interrupted; it continues later.", number)
            return
        self._retry(lambda: trial.study.tell(trial, value, state, skip_if_finished=True))

    def _run_process(self, number: int, trial: Trial) -> tuple[bool, str]:
        """Returns whether the trial was pruned, and the error of its process."""
        module, *flags = self.task.command(number, trial.params)
        log = self.task.folder.logs / f"{number:04}.txt"
        with log.open("ab") as stderr, self.task.output(number).open("wb") as stdout:
            start = stderr.tell()  # the output of earlier attempts ends here
            process = self.start(module, flags, stdout=stdout, stderr=stderr, env=self.environment)
        pruned = False
        next_update = 0.0
        with process:
            try:
                while process.poll() is None and not (pruned or self.stop.is_set()):
                    if time.monotonic() >= next_update:
                        pruned = self._retry(self._update, number, trial)
                        next_update = time.monotonic() + HEARTBEAT
                    time.sleep(POLL)
            finally:
                process.terminate()  # the child saves and exits
                while process.poll() is None:  # saving may take longer than the grace period
                    with contextlib.suppress(UpdateFinishedTrialError, *STORAGE_ERRORS):
                        self._update(number, trial)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(HEARTBEAT)
        self._retry(self._update, number, trial)
        if process.returncode in INTERRUPTED:
            return pruned, ""
        code = process.returncode
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        return pruned, "\n".join([f"{how}; the end of {log}:", *child.last_lines(log, start)])

    def _update(self, number: int, trial: Trial) -> bool:
        return self.study.update(trial, self.task.measured(number, self.study.sweep.objective))

    def _wait_for_workdir(self, number: int, trial: Trial) -> None:
        """Waits while another process uses the workdir: the child of a sweep that was killed may
        still be saving.
        """
        while not self.stop.is_set():
            try:
                with lock_workdir(self.task.folder.workdir(number)):
                    return
            except InUse as error:
                logging.warning("Trial %d waits: %s", number, error)
            self._retry(self._update, number, trial)
            self.stop.wait(HEARTBEAT)

    def _retry(self, call: Callable[..., T], *arguments: object) -> T:
        """Calls the function again while the storage fails, for at most `OUTAGE` seconds."""
        limit = time.monotonic() + OUTAGE
        while True:
            try:
                return call(*arguments)
            except STORAGE_ERRORS as error:
                no_space = any(words in reason(error) for words in NO_SPACE)
                if no_space or self.stop.is_set() or time.monotonic() > limit:
                    raise
                logging.warning(
                    "The storage fails (%s); trying again for %d minutes.",
                    reason(error),
                    OUTAGE // 60,
                )
                self.stop.wait(HEARTBEAT)
