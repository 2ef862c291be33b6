"""The Optuna study of a sweep, which several processes on one or several machines may share.

A trial of the sweep is one or several trials of the study. Optuna's
`RetryHeartbeatStaleTrialCallback` enqueues a copy with the same values when a process died, was
interrupted, or a failed trial is retried. The user attribute "trial" is the number in the sweep.
The latest copy has the state of the trial.

The queue is changed only under a file lock, for two reasons. `Study.ask` creates a trial if another
process has just taken the last one in the queue. SQLite does not lock rows.
"""

import contextlib
import os
import platform
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import optuna
import sqlalchemy
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, Trial, TrialState

from scripts.sweeping.description import Sweep, Values
from transformer.support.errors import UserError

# Seconds between the heartbeats of a running trial.
HEARTBEAT = 5
# Seconds without a heartbeat after which another process takes a trial over.
GRACE_PERIOD = 60
PROCESS = f"process {os.getpid()} on {platform.node()}"
STORAGE_ERRORS = (sqlalchemy.exc.SQLAlchemyError, StorageInternalError)

optuna.logging.disable_default_handler()  # workers log the progress of their trials
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
warnings.filterwarnings("ignore", "Heartbeat of storage is supposed to be used with Study.optimize")


class SweepStudy:
    """The study of a sweep, for all threads of a process."""

    def __init__(
        self, url: str, name: str, sweep: Sweep, lock: Callable[[], AbstractContextManager]
    ) -> None:
        """Connects to the storage and creates Optuna's tables if they are missing.

        `lock` returns a context manager that excludes all other processes and threads of the sweep.
        Raises UserError if the URL's driver is missing, or the tables are of another version of
        Optuna.
        """
        self.url = url
        self.name = name
        self.sweep = sweep
        self.lock = lock
        self.retry = RetryHeartbeatStaleTrialCallback()
        # SQLite waits for the lock of another process; PostgreSQL for the connection.
        timeout = {"timeout": 60} if url.startswith("sqlite") else {"connect_timeout": 10}
        try:
            self.storage = RDBStorage(
                url.replace("{", "{{").replace("}", "}}"),  # Optuna formats the URL
                {"connect_args": timeout, "poolclass": sqlalchemy.pool.NullPool},
                heartbeat_interval=HEARTBEAT,
                grace_period=GRACE_PERIOD,
                heartbeat_stale_trial_callback=self.retry,
            )
        except (ImportError, RuntimeError) as error:
            message = str(error).splitlines()[0]
            raise UserError(f"--storage={hide_password(url)}: {message}") from error

    def create(self) -> None:
        """Creates the study and enqueues the trials that it does not have.

        The caller holds the lock.
        """
        study = optuna.create_study(
            storage=self.storage,
            study_name=self.name,
            direction=self.sweep.direction,
            load_if_exists=True,
        )
        # A sweep that is resumed or extended has some of its trials already.
        enqueued = {trial.user_attrs["trial"] for trial in study.get_trials(deepcopy=False)}
        for number, values in enumerate(self.sweep.trials):
            if number not in enqueued:
                study.enqueue_trial(values, user_attrs={"trial": number})

    def load(self, seed: int = 0) -> optuna.Study:
        """Returns Optuna's study, with a sampler of the seed.

        Raises UserError if the storage does not have it.
        """
        # These are functions of the sweep's file, so their errors are not errors of the storage.
        sampler = self.sweep.sampler(seed)
        pruner = self.sweep.pruner or optuna.pruners.NopPruner()
        try:
            return optuna.load_study(
                study_name=self.name, storage=self.storage, sampler=sampler, pruner=pruner
            )
        except KeyError:
            url = hide_password(self.url)
            raise UserError(
                f"--storage={url}: has no study {self.name}; give the storage of this sweep"
            ) from None

    def claim(self) -> Trial | None:
        """Returns the next waiting trial, for this process to run; None if no trial is waiting.

        Trials without a heartbeat for the grace period are enqueued first. Raises UserError if
        another process has added trials to the sweep, since this process does not know their
        values.
        """
        with self.lock():
            study = self.load()
            optuna.storages.fail_stale_trials(study)
            waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
            if not waiting:
                return None

            number = waiting[0].user_attrs["trial"]
            if number >= len(self.sweep.trials) and not self.sweep.space:
                raise UserError(
                    f"the sweep has been extended by trial {number}; "
                    "run the command of the longer sweep"
                )
            # The first heartbeat comes before the trial runs: Optuna never counts a trial without
            # heartbeats as stale.
            self.storage.record_heartbeat(waiting[0]._trial_id)
            # `ask` takes the first waiting trial, and the sampler draws the values that it lacks.
            trial = self.load(seed=number).ask(self.sweep.distributions(number))
            trial.set_user_attr("process", PROCESS)
            return trial

    def update(self, trial: Trial, objective: dict[int, float]) -> bool:
        """Records a heartbeat and the objective by step. True if the trial should be pruned.

        Raises UpdateFinishedTrialError if another process has taken the trial after the grace
        period.
        """
        self.storage.record_heartbeat(trial._trial_id)
        record = self.storage.get_trial(trial._trial_id)
        if record.state != TrialState.RUNNING:
            raise UpdateFinishedTrialError
        # `objective` has all steps since the start, and Optuna warns about repeated ones.
        new_steps = [step for step in objective if step not in record.intermediate_values]
        for step in new_steps:
            trial.report(objective[step], step)
        return bool(new_steps and trial.should_prune())

    def requeue(self, trial: Trial) -> None:
        """Enqueues an interrupted trial, for any process to continue."""
        with self.lock():
            record = self.storage.get_trial(trial._trial_id)
            if record.state == TrialState.RUNNING:
                # In this order: if the storage fails in between, the trial is still recorded as
                # running, and another process takes it over later.
                self.retry(trial.study, record)
                trial.study.tell(trial, state=TrialState.FAIL)

    def retry_failed(self) -> None:
        """Enqueues all failed trials."""
        with self.lock():
            for trial in self.trials():
                if trial.state == TrialState.FAIL:
                    self.retry(self.load(), trial)

    def trials(self) -> list[FrozenTrial]:
        """Returns the latest copy of every trial, by its number in the sweep."""
        # Optuna lists trials in the order of their creation, so a later copy replaces an earlier
        # one.
        latest = {trial.user_attrs["trial"]: trial for trial in self.load().get_trials()}
        return [latest[number] for number in range(len(self.sweep.trials))]


def values(trial: FrozenTrial) -> Values:
    """Returns the varied values of a trial. A waiting trial of a search does not have any yet."""
    return trial.system_attrs.get("fixed_params", {}) | trial.params


@contextlib.contextmanager
def storage_errors(url: str) -> Iterator[None]:
    """Turns errors of the database into UserErrors that name the URL without its password."""
    hide_password(url)  # raises UserError if it is not a URL
    try:
        yield
    except STORAGE_ERRORS as error:
        raise UserError(
            f"--storage={hide_password(url)}: {reason(error)}; then run the same command again"
        ) from error


def reason(error: Exception) -> str:
    """Returns the first line of the database's message."""
    cause = error.__cause__ or error
    return str(getattr(cause, "orig", None) or cause).splitlines()[0]


def hide_password(url: str) -> str:
    """Returns the URL without its password. Raises UserError if it is not a URL."""
    try:
        return sqlalchemy.engine.make_url(url).render_as_string(hide_password=True)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        example = "postgresql://user:password@host/database or sqlite:///file.db"
        raise UserError(f"--storage: must be a URL such as {example}") from None
