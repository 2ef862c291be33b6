"""Goes through the trials of a sweep: claims, starts and watches them, and enters in the ledger what they come to."""

import math
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import optuna
from absl import logging

from scripts.sweeping.jobs import Job
from scripts.sweeping.ledger import Ledger
from scripts.sweeping.results import described, summary
from scripts.sweeping.storage import FAILURES, HEARTBEAT, reason
from scripts.sweeping.tasks import Task
from transformer import cli
from transformer.errors import UserError

TICK = 0.5  # seconds between looks at the jobs
LOOK = 5.0  # seconds between looks for trials that others have left
OUTAGE = 900.0  # seconds for which the storage may fail; the jobs go on meanwhile
FULL = ("disk is full", "No space left")  # what SQLite and PostgreSQL say: no waiting helps
LEAST_FREE = 2**20  # bytes of the disk, below which it counts as full


class Supervisor:
    """Up to `jobs` trials at a time, until none is left that this or another process might have to do."""

    def __init__(self, ledger: Ledger, task: Task, jobs: int, logs: Path) -> None:
        self.ledger, self.task, self.logs = ledger, task, logs
        self.slots: list[Job | None] = [None] * jobs
        self.next_look = 0.0
        # By the clock on the wall, which goes on while the machine sleeps.
        self.looked_at = self.watching_since = 0.0
        self.failing_since: float | None = None  # the storage
        self.waits_for = ""

    @property
    def jobs(self) -> list[Job]:
        return [job for job in self.slots if job is not None]

    def run(self, show_progress: Callable[[list[Job]], None]) -> None:
        """Returns once every trial is complete, pruned or failed.

        Raises:
          KeyboardInterrupt: that came; the jobs have saved and ended.
          UserError: the disk is full.
        """
        try:
            while not self._patiently(self._go_round, show_progress):
                time.sleep(TICK)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted; the same command goes on with the trials that are left") from None
        finally:
            self._end_all()

    def _go_round(self, show_progress: Callable[[list[Job]], None]) -> bool:
        """Looks at everything once. Returns whether there is nothing left to do."""
        for job in self.jobs:
            self._look_at(job)
        if time.monotonic() >= self.next_look:
            self.next_look = time.monotonic() + LOOK
            self._give_up_silent()
            self.ledger.mend()  # raises while the storage is away
            self.looked_at, self.failing_since = time.time(), None
            self._fill()
            if not self.jobs and not self._others_at_work():
                return True
        show_progress(self.jobs)
        return False

    def _give_up_silent(self) -> None:
        """Fails the rows of dead processes, once this one has watched them without a break for as long as that takes.

        When it has just begun, or the storage was away, or the machine asleep, the living were silent too.
        """
        now = time.time()
        if not 0 <= now - self.looked_at <= 2 * HEARTBEAT:
            self.watching_since = now
        if now - self.watching_since >= self.ledger.grace:
            for job in self.jobs:
                self._beat(job)  # or this process might give up its own
            self.ledger.give_up_silent()

    def _patiently(self, action: Callable, *arguments) -> bool:
        """What the action returns; False if the storage has failed, as it may for a while."""
        try:
            return action(*arguments)
        except FAILURES as error:
            if any(words in reason(error) for words in FULL):
                raise
            if self.failing_since is None:
                self.failing_since = time.monotonic()
                logging.warning("The storage fails (%s); trying again for %.0f minutes.", reason(error), OUTAGE / 60)
            if time.monotonic() - self.failing_since > OUTAGE:
                raise
            return False

    def _fill(self) -> None:
        for slot in [slot for slot, job in enumerate(self.slots) if job is None]:
            if (attempt := self.ledger.claim()) is None:
                return
            logging.info("Trial %d: %s", attempt.trial, described(attempt.values))
            self.slots[slot] = Job(self.task, attempt, slot, len(self.slots), self.logs)

    def _others_at_work(self) -> bool:
        """Whether trials are left that others have: should those processes die, this one is to go on with them."""
        left = {
            trial: standing.worker or "nobody yet"
            for trial, standing in enumerate(self.ledger.standings())
            if standing.state in ("running", "waiting", "missing")
        }
        waits_for = ", ".join(f"trial {trial} ({worker})" for trial, worker in left.items())
        if waits_for and waits_for != self.waits_for:
            logging.info("Waiting for %s; taken over after %d s without a sign of life.", waits_for, self.ledger.grace)
        self.waits_for = waits_for
        return bool(left)

    def _look_at(self, job: Job) -> None:
        if time.monotonic() - job.beaten > HEARTBEAT:
            self._beat(job)
        try:
            ended = job.advance()
        except UserError as error:
            self._fail(job, str(error))
            self._close(job)
            return
        if not job.lost:
            self._report(job)
        if ended:
            self._enter(job)

    def _beat(self, job: Job) -> None:
        """Says that the job is alive, and stops it if it is another process's by now."""
        job.beaten = time.monotonic()
        if not job.lost and not self.ledger.heartbeat(job.attempt, job.seconds):
            job.lost = True
            logging.warning("Trial %d: another process has taken over; this one was silent.", job.attempt.trial)
            job.stop()

    def _report(self, job: Job) -> None:
        """Tells the ledger what has been measured since the last time, and stops the job if that is hopeless."""
        measured = self.task.measured(job.attempt.trial, self.ledger.sweep.objective)
        steps = [step for step in measured if step not in job.reported]
        try:
            for step in steps:
                self.ledger.report(job.attempt, step, measured[step])
                job.reported.add(step)
            if steps and not job.stopping and self.ledger.is_hopeless(job.attempt):
                job.hopeless = True
                job.stop()
        except optuna.exceptions.UpdateFinishedTrialError:
            job.beaten = 0.0  # the next heartbeat tells that another process has taken over

    def _enter(self, job: Job) -> None:
        """What the ended job has come to."""
        trial = job.attempt.trial
        if job.lost or not self.ledger.heartbeat(job.attempt, job.seconds):
            pass  # it is another process's now
        elif self.task.is_complete(trial):
            self._complete(job)
        elif error := job.error:
            if full := self._full_disk(error):
                self.ledger.release(job.attempt)
                self._close(job)
                raise UserError(f"trial {trial}: {full}")
            self._fail(job, error)
        elif job.hopeless:
            self.ledger.prune(job.attempt)
            logging.info("Trial %d: pruned after step %d.", trial, max(job.reported))
        else:
            self.ledger.release(job.attempt)
            logging.warning("Trial %d was stopped; it goes on later.", trial)
        self._close(job)

    def _full_disk(self, error: str) -> str:
        """What the job has said of a full disk, on which there may be no room to say it; empty if it is not full."""
        if said := [line for line in error.splitlines() if cli.DISK_IS_FULL in line]:
            return said[-1].removeprefix("error: ")
        if shutil.disk_usage(self.logs).free < LEAST_FREE:
            return f"{cli.DISK_IS_FULL} ({self.logs}); make room and run the same command again"
        return ""

    def _complete(self, job: Job) -> None:
        """The value of a trial is the best of its validations, as training itself counts."""
        trial, objective = job.attempt.trial, self.ledger.sweep.objective
        finite = [value for value in self.task.measured(trial, objective).values() if math.isfinite(value)]
        if not finite:
            self._fail(job, f"{objective} was never a finite number")
            return
        best = self.ledger.sweep.best(finite)
        self.ledger.complete(job.attempt, best)
        logging.info("Trial %d done: %s %.4g", trial, objective, best)

    def _fail(self, job: Job, error: str) -> None:
        self.ledger.fail(job.attempt, error)
        logging.error("Trial %d failed: %s", job.attempt.trial, error)

    def _close(self, job: Job) -> None:
        job.close()
        self.slots[job.slot] = None
        self.next_look = min(self.next_look, time.monotonic())
        if not sys.stderr.isatty():
            logging.info("%s", summary(self.ledger.standings(), self.ledger.sweep, len(self.slots)))

    def _end_all(self) -> None:
        """Asks all jobs to end, and looks at them until they have."""
        for job in self.jobs:
            job.stop()
        while self.jobs:
            for job in self.jobs:
                self._patiently(self._look_at, job)
            time.sleep(TICK)
