"""Goes through the trials of a sweep: claims, starts and watches them, and enters in the ledger what they come to."""

import math
import time
from collections.abc import Callable
from pathlib import Path

import optuna
from absl import logging

from scripts.sweeping.jobs import Job
from scripts.sweeping.ledger import GRACE, HEARTBEAT, Attempt, Ledger
from scripts.sweeping.tasks import Task
from transformer.config_keys import show

TICK = 0.5  # seconds between looks at the jobs
LOOK = 5.0  # seconds between looks for trials that others have left


class Supervisor:
    """Up to `jobs` trials at a time, until none is left that this or another process might have to do."""

    def __init__(self, ledger: Ledger, task: Task, jobs: int, logs: Path) -> None:
        self.ledger, self.task, self.logs = ledger, task, logs
        self.slots: list[Job | None] = [None] * jobs
        self.next_look = 0.0
        self.waits_for = ""

    @property
    def jobs(self) -> list[Job]:
        return [job for job in self.slots if job is not None]

    def run(self, show_progress: Callable[[list[Job]], None]) -> None:
        """Raises KeyboardInterrupt, once its jobs have saved and ended, if that comes."""
        try:
            while True:
                if time.monotonic() >= self.next_look:
                    self.next_look = time.monotonic() + LOOK
                    self.ledger.mend()
                    self._fill()
                    if not self.jobs and not self._others_at_work():
                        break
                show_progress(self.jobs)
                time.sleep(TICK)
                for job in self.jobs:
                    self._look_at(job)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted; the same command goes on with the trials that are left") from None
        finally:
            self._end_all()

    def _fill(self) -> None:
        for slot in [slot for slot, job in enumerate(self.slots) if job is None]:
            if (attempt := self.ledger.claim()) is None:
                return
            logging.info("Trial %d: %s", attempt.trial, describe(attempt))
            self.slots[slot] = Job(self.task, attempt, slot, len(self.slots), self.logs)

    def _others_at_work(self) -> bool:
        """Whether trials are left that others have: should those processes die, this one is to go on with them."""
        left = {
            trial: standing.worker or "nobody yet"
            for trial, standing in enumerate(self.ledger.standings())
            if standing.state in ("running", "waiting")
        }
        waits_for = ", ".join(f"trial {trial} ({worker})" for trial, worker in left.items())
        if waits_for and waits_for != self.waits_for:
            logging.info("Waiting for %s; taken over after %d s without a sign of life.", waits_for, GRACE)
        self.waits_for = waits_for
        return bool(left)

    def _look_at(self, job: Job) -> None:
        try:
            if time.monotonic() - job.beaten > HEARTBEAT:
                job.beaten = time.monotonic()
                if not self.ledger.heartbeat(job.attempt):
                    raise optuna.exceptions.UpdateFinishedTrialError
            ended = job.advance()
            self._report(job)
            if ended:
                self._enter(job)
        except optuna.exceptions.UpdateFinishedTrialError:
            logging.warning("Trial %d: another process has taken over; this one was silent.", job.attempt.trial)
            job.stop()
            job.wait()
            self._close(job)

    def _report(self, job: Job) -> None:
        measured = self.task.measured(job.attempt.trial, self.ledger.sweep.objective)
        for step, value in measured.items():
            if step not in job.reported:
                job.reported.add(step)
                self.ledger.report(job.attempt, step, value)
                if not job.hopeless and self.ledger.is_hopeless(job.attempt):
                    job.hopeless = True
                    job.stop()

    def _enter(self, job: Job) -> None:
        """What the ended job has come to."""
        trial = job.attempt.trial
        if self.task.is_complete(trial):
            self._complete(job)
        elif error := job.error:
            self.ledger.fail(job.attempt, error)
            logging.error("Trial %d failed: %s", trial, error)
        elif job.hopeless:
            self.ledger.prune(job.attempt)
            logging.info("Trial %d: pruned after step %d.", trial, max(job.reported))
        else:
            self.ledger.release(job.attempt)
            logging.warning("Trial %d was stopped; it goes on later.", trial)
        self._close(job)

    def _complete(self, job: Job) -> None:
        """The value of a trial is the best of its validations, as training itself counts."""
        trial, objective = job.attempt.trial, self.ledger.sweep.objective
        finite = [value for value in self.task.measured(trial, objective).values() if math.isfinite(value)]
        if not finite:
            self.ledger.fail(job.attempt, f"{objective} was never a finite number")
            logging.error("Trial %d failed: %s was never a finite number", trial, objective)
            return
        best = (max if self.ledger.sweep.direction == "maximize" else min)(finite)
        self.ledger.complete(job.attempt, best)
        logging.info("Trial %d done: %s %.4g", trial, objective, best)

    def _close(self, job: Job) -> None:
        job.close()
        self.slots[job.slot] = None
        self.next_look = 0.0

    def _end_all(self) -> None:
        for job in self.jobs:
            job.stop()
        for job in self.jobs:
            job.wait()
            self._enter(job)


def describe(attempt: Attempt) -> str:
    return ", ".join(f"{key}={show(value)}" for key, value in attempt.values.items())
