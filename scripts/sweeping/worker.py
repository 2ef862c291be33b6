"""Workers that claim trials of a study and run them in child processes."""

import contextlib
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from typing import Any

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

# Seconds between checks of a child process.
POLL = 0.5
# Seconds for which calls to the storage are retried; the trials continue meanwhile.
OUTAGE = 900
# Parts of the messages of SQLite and PostgreSQL for which retrying does not help.
NO_SPACE = ("disk is full", "No space left")
# Exit codes of commands that were interrupted.
INTERRUPTED = (0, 130, -signal.SIGTERM)

Starter = Callable[..., Any]  # like `child.start`


@dataclass
class TrialWorker:
    """A loop that claims trials and runs them one after the other.

    Each worker has a thread. `start` is a function like `child.start`, and `stop` interrupts the
    worker and its trial.
    """

    study: SweepStudy
    task: Task
    environment: dict[str, str]
    processors: set[int]
    stop: threading.Event
    start: Starter

    def run(self) -> None:
        """Runs trials until no trial waits or runs in any process, or until `stop` is set."""
        if self.processors:
            # The affinity of this thread, which its child processes inherit.
            os.sched_setaffinity(0, self.processors)
        while not self.stop.is_set():
            trial = self._retry(self.study.claim)
            if trial is not None:
                self._run_claimed(trial)
            elif all(trial.state.is_finished() for trial in self._retry(self.study.trials)):
                return
            else:
                logging.log_every_n_seconds(
                    logging.INFO,
                    "All trials have started. Each is taken over after %d s without a heartbeat.",
                    600,
                    GRACE_PERIOD,
                )
                self.stop.wait(HEARTBEAT)

    def _run_claimed(self, trial: Trial) -> None:
        number = trial.user_attrs["trial"]
        values = [f"{key}={show_value(value)}" for key, value in trial.params.items()]
        logging.info("Trial %d: %s", number, ", ".join(values))
        logging.info("%s", summary(self._retry(self.study.trials), self.study.sweep))
        try:
            self._run_trial(number, trial)
        except UpdateFinishedTrialError:
            # After an outage of the storage, or while this machine slept.
            logging.warning("Trial %d was taken by another process.", number)

    def _run_trial(self, number: int, trial: Trial) -> None:
        """Runs a trial and records how it ended."""
        pruned = False
        error = ""
        value = None
        try:
            self._wait_for_workdir(number, trial)
            if not (self.stop.is_set() or self.task.is_complete(number)):
                pruned, error = self._run_process(number, trial)
            if self.task.is_complete(number):
                value = self._read_value(number, trial)
                is_finite = value is not None
                error = "" if is_finite else f"{self.study.sweep.objective} was never finite"
        except UserError as problem:  # invalid values, or a scorer that fails
            error = str(problem)

        # A full disk is not an error of the trial, and ends the sweep.
        if cli.DISK_IS_FULL in error:
            self._retry(self.study.requeue, trial)
            raise UserError(f"trial {number}: {error.splitlines()[-1].removeprefix('error: ')}")

        # Record the state of the trial. An interrupted trial returns to the queue.
        if error:
            state = TrialState.FAIL
            self._retry(trial.set_user_attr, "error", error)
            logging.error("Trial %d failed: %s", number, error)
        elif value is not None:
            state = TrialState.COMPLETE
            objective = self.study.sweep.objective
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
        """Runs the trial's command until it ends, is pruned or is interrupted.

        Returns whether the trial was pruned, and the error of its process or "".
        """
        module, *flags = self.task.command(number, trial.params)
        log = self.task.folder.logs / f"{number:04}.txt"
        with log.open("ab") as stderr, self.task.output(number).open("wb") as stdout:
            start = stderr.tell()  # the output of earlier attempts ends here
            process = self.start(module, flags, stdout=stdout, stderr=stderr, env=self.environment)

        # Watch the process: report its validations, and end it if it is pruned or this worker
        # stops.
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
                # Saving may take longer than the grace period, so the heartbeat continues.
                while process.poll() is None:
                    with contextlib.suppress(UpdateFinishedTrialError, *STORAGE_ERRORS):
                        self._update(number, trial)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(HEARTBEAT)
        # The last validations of the process.
        self._retry(self._update, number, trial)

        code = process.returncode
        if code in INTERRUPTED:
            return pruned, ""
        ending = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        lines = [f"{ending}; the end of {log}:", *child.last_lines(log, start)]
        return pruned, "\n".join(lines)

    def _read_value(self, number: int, trial: Trial) -> float | None:
        """Returns the best finite value of the objective of a complete trial, or None.

        Raises UserError if the command of a metric fails.
        """
        # The command may take longer than the grace period, so the heartbeat continues.
        objective = self.study.sweep.objective
        with ThreadPool(1) as thread:
            scored = thread.apply_async(self.task.score, (number, objective))
            while not scored.ready():
                self._retry(self._update, number, trial)
                scored.wait(HEARTBEAT)
            scored.get()
        values = self.task.read_objective(number, objective).values()
        return self.study.sweep.best(filter(math.isfinite, values), default=None)

    def _update(self, number: int, trial: Trial) -> bool:
        return self.study.update(
            trial, self.task.read_objective(number, self.study.sweep.objective)
        )

    def _wait_for_workdir(self, number: int, trial: Trial) -> None:
        """Waits while another process uses the workdir.

        The child process of a killed sweep may still be saving.
        """
        while not self.stop.is_set():
            try:
                with lock_workdir(self.task.folder.workdir(number)):
                    return
            except InUse as error:
                logging.warning("Trial %d waits: %s", number, error)
            # The trial is claimed, so its heartbeat continues.
            self._retry(self._update, number, trial)
            self.stop.wait(HEARTBEAT)

    def _retry(self, call: Callable[..., Any], *arguments: object) -> Any:
        """Returns the result of a call, repeated while the storage fails, for `OUTAGE` seconds."""
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
