"""Who does which trial, and what became of it: a study in one of Optuna's relational storages.

A trial is done in one attempt or several, each a row of the study. Processes that work on one sweep, on one machine or
on many, share nothing else, and each may be killed at any moment:

- All rows start out waiting; to claim one is a single update of the database, which one process wins.
- Who works on a row gives heartbeats. A row without them for `GRACE` seconds is failed by whoever looks next.
- A trial without a standing row, because its process died or was interrupted, gets a new one. Should two processes
  add one at the same time, the earlier counts and the other is retired when it is claimed.
"""

import contextlib
import os
import platform
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import optuna
import sqlalchemy
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from scripts.sweeping.description import Sweep, Values
from transformer.errors import UserError

HEARTBEAT = 10  # seconds between heartbeats
GRACE = 60  # seconds without one after which a trial is taken over
OPEN = (TrialState.RUNNING, TrialState.WAITING)
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)


@dataclass(frozen=True)
class Standing:
    """What became of a trial so far. `value` and `values` are there as far as they are known."""

    state: str  # complete | pruned | failed | running | waiting | missing: it needs a new attempt
    value: float | None
    values: Values
    error: str  # its last lines, if it failed
    worker: str  # the process that is on it, if it is running
    seconds: float  # in all its attempts


@dataclass
class Attempt:
    """A claimed row. `values` holds all that the trial sets."""

    trial: int
    values: Values
    row: optuna.trial.Trial
    row_id: int


class Ledger:
    """The study of one sweep. It is made with its rows if it is not there. Not for use by several threads."""

    def __init__(self, url: str, name: str, sweep: Sweep, grace: float = GRACE) -> None:
        """Raises UserError if the storage cannot be reached."""
        self.sweep = sweep
        with storage_errors(url):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # of heartbeats
                self.storage = RDBStorage(url, _engine_options(url), heartbeat_interval=HEARTBEAT, grace_period=grace)
            self.study = optuna.create_study(
                storage=self.storage,
                study_name=name,
                direction=sweep.direction,
                pruner=sweep.pruner or optuna.pruners.NopPruner(),
                load_if_exists=True,
            )
            self.study_id = self.storage.get_study_id_from_name(name)

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_) -> None:
        self.storage.remove_session()
        self.storage.engine.dispose()

    def mend(self) -> None:
        """Gives up rows whose process is silent, and adds one for every trial that needs it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            optuna.storages.fail_stale_trials(self.study)
        for trial, standing in enumerate(self.standings()):
            if standing.state == "missing":
                self._add(trial, standing.values)

    def retry_failed(self) -> int:
        """Adds a row for every trial that failed. Returns for how many."""
        failed = [(trial, each.values) for trial, each in enumerate(self.standings()) if each.state == "failed"]
        for trial, values in failed:
            self._add(trial, values)
        return len(failed)

    def claim(self) -> Attempt | None:
        """The first trial that waits, now this process's; None if there is none."""
        for row in self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            row_id = self.storage.get_trial_id_from_study_id_trial_number(self.study_id, row.number)
            # The heartbeat first: a process killed between the two has not taken the row with it.
            self.storage.record_heartbeat(row_id)
            if self._won(row_id):
                if self._is_superfluous(row):
                    self.storage.set_trial_user_attr(row_id, "superfluous", True)
                    self.storage.set_trial_state_values(row_id, TrialState.FAIL)
                    continue
                return self._attempt(row, row_id)
        return None

    def heartbeat(self, attempt: Attempt) -> bool:
        """Whether the attempt is still this process's: if it was silent for too long, another has taken over."""
        self.storage.record_heartbeat(attempt.row_id)
        return self.storage.get_trial(attempt.row_id).state == TrialState.RUNNING

    def report(self, attempt: Attempt, step: int, value: float) -> None:
        attempt.row.report(value, step)

    def is_hopeless(self, attempt: Attempt) -> bool:
        """What the sweep's pruner thinks of it by the values reported so far."""
        return attempt.row.should_prune()

    def complete(self, attempt: Attempt, value: float) -> None:
        self.study.tell(attempt.row, value, skip_if_finished=True)

    def prune(self, attempt: Attempt) -> None:
        self.study.tell(attempt.row, state=TrialState.PRUNED, skip_if_finished=True)

    def fail(self, attempt: Attempt, error: str) -> None:
        """It will not be tried again unasked."""
        attempt.row.set_user_attr("error", error)
        self.release(attempt)

    def release(self, attempt: Attempt) -> None:
        """Whoever comes next goes on with the trial."""
        self.study.tell(attempt.row, state=TrialState.FAIL, skip_if_finished=True)

    def standings(self) -> list[Standing]:
        """Of every trial, by its number."""
        rows: list[list[FrozenTrial]] = [[] for _ in self.sweep.trials]
        for row in self.study.get_trials(deepcopy=False):
            if row.user_attrs["trial"] < len(rows) and "superfluous" not in row.user_attrs:
                rows[row.user_attrs["trial"]].append(row)
        return [_standing(each, listed) for each, listed in zip(rows, self.sweep.trials, strict=True)]

    def _add(self, trial: int, values: Values) -> None:
        self.study.enqueue_trial(values, user_attrs={"trial": trial})

    def _won(self, row_id: int) -> bool:
        try:
            return self.storage.set_trial_state_values(row_id, TrialState.RUNNING)
        except optuna.exceptions.UpdateFinishedTrialError:
            return False

    def _is_superfluous(self, row: FrozenTrial) -> bool:
        trial = row.user_attrs["trial"]
        others = [other for other in self.study.get_trials(deepcopy=False) if other.user_attrs["trial"] == trial]
        return any(
            other.state in ENDED or (other.state in OPEN and other.number < row.number)
            for other in others
            if other.number != row.number
        )

    def _attempt(self, row: FrozenTrial, row_id: int) -> Attempt:
        trial = row.user_attrs["trial"]
        self.storage.set_trial_user_attr(row_id, "worker", f"process {os.getpid()} on {platform.node()}")
        # A seed for each trial: what is suggested then depends on the values known, not on who asks or how often.
        self.study.sampler = self.sweep.sampler(trial)
        claimed = optuna.trial.Trial(self.study, row_id)
        values = {key: _suggest(claimed, key, span) for key, span in self.sweep.distributions(trial).items()}
        return Attempt(trial, values | self.sweep.trials[trial], claimed, row_id)


@contextlib.contextmanager
def storage_errors(url: str) -> Iterator[None]:
    """Turns failures of the storage in the block into UserErrors that name it, without its password."""
    try:
        yield
    except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError, ImportError) as error:
        cause = error.__cause__ if isinstance(error, optuna.exceptions.StorageInternalError) else error
        reason = str(getattr(cause, "orig", None) or cause or error).splitlines()[0]
        raise UserError(f"--storage={shown(url)}: {reason}; the same command goes on when it is there again") from error


def shown(url: str) -> str:
    """The URL without its password. Raises UserError if it is none."""
    try:
        return sqlalchemy.engine.make_url(url).render_as_string(hide_password=True)
    except sqlalchemy.exc.ArgumentError:
        raise UserError(
            f"--storage={url}: must be a URL such as postgresql://user:password@host/database or sqlite:///file.db"
        ) from None


def _engine_options(url: str) -> dict:
    if sqlalchemy.engine.make_url(url).get_backend_name() == "sqlite":
        return {"connect_args": {"timeout": 60}}  # seconds to wait for another process's writing
    return {"connect_args": {"connect_timeout": 10}, "pool_pre_ping": True}


def _standing(rows: list[FrozenTrial], listed: Values) -> Standing:
    known = next((_values(row) for row in reversed(rows) if _values(row)), {})
    ended = next((row for row in rows if row.state in ENDED), None)
    running = next((row for row in rows if row.state == TrialState.RUNNING), None)
    waiting = any(row.state == TrialState.WAITING for row in rows)
    error = rows[-1].user_attrs.get("error", "") if rows else ""
    if ended is not None:
        state = ended.state.name.lower()
    elif running is not None:
        state = "running"
    else:
        state = "waiting" if waiting else "failed" if error else "missing"
    return Standing(
        state,
        ended.value if ended else None,
        known | listed,
        error if state == "failed" else "",
        running.user_attrs.get("worker", "") if state == "running" else "",
        sum(row.duration.total_seconds() for row in rows if row.duration is not None),
    )


def _values(row: FrozenTrial) -> Values:
    return row.params or row.system_attrs.get("fixed_params", {})


def _suggest(row: optuna.trial.Trial, key: str, distribution: BaseDistribution):
    if isinstance(distribution, CategoricalDistribution):
        return row.suggest_categorical(key, distribution.choices)
    suggest = row.suggest_float if isinstance(distribution, FloatDistribution) else row.suggest_int
    return suggest(key, distribution.low, distribution.high, step=distribution.step, log=distribution.log)
