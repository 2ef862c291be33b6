"""Who does which trial, and what became of it: a study in one of Optuna's relational storages.

A trial is done in one attempt or several, each a row of the study. Processes that work on one sweep, on one machine or
on many, share nothing else, and each may be killed at any moment:

- All rows start out waiting; to claim one is a single transaction of the database, which one process wins.
- Who works on a row gives heartbeats. A row without them for `GRACE` seconds is failed by whoever has looked for so
  long.
- A trial without a standing row, because its process died or was interrupted, gets a new one, which notes how many it
  had before. Should several processes add one at the same time, all but the first have noted too few and do not count.
"""

import contextlib
import os
import platform
import warnings
from dataclasses import dataclass

import optuna
from optuna.trial import FrozenTrial, TrialState

from scripts.sweeping.description import Sweep, Values, suggest
from scripts.sweeping.storage import open_storage, shown, storage_errors
from transformer.errors import UserError

GRACE = 60  # seconds without one after which a trial is taken over
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)


@dataclass(frozen=True)
class Standing:
    """What became of a trial so far. `value` and `values` are there as far as they are known."""

    state: str  # complete | pruned | failed | running | waiting | missing: it needs a new attempt
    value: float | None
    values: Values
    error: str  # its last lines, if it failed
    worker: str  # the process that is on it, if it is running
    seconds: float  # at work, in all its attempts
    rows: int  # of the study, those that do not count included


@dataclass
class Attempt:
    """A claimed row. `values` holds all that the trial sets."""

    trial: int
    values: Values
    row: optuna.trial.Trial
    row_id: int


class Ledger:
    """The study of one sweep. It is made with its rows if it is not there. Not for use by several threads."""

    def __init__(self, url: str, name: str, sweep: Sweep, grace: float = GRACE, make: bool = True) -> None:
        """Raises UserError if the storage cannot be reached, or without `make` the study is not there."""
        self.sweep, self.grace = sweep, grace
        pruner = sweep.pruner or optuna.pruners.NopPruner()
        with storage_errors(url):
            self.storage = open_storage(url, grace, make)
            if make:
                optuna.create_study(
                    storage=self.storage, study_name=name, direction=sweep.direction, load_if_exists=True
                )
            try:
                self.study = optuna.load_study(study_name=name, storage=self.storage, pruner=pruner)
            except KeyError:
                self.__exit__()
                raise UserError(f"--storage={shown(url)}: has no study {name}; put the sweep's ledger back") from None
            self.study_id = self.storage.get_study_id_from_name(name)

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_) -> None:
        self.storage.remove_session()
        self.storage.engine.dispose()

    def give_up_silent(self) -> None:
        """Fails the rows whose process has given no heartbeat for `grace` seconds."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            optuna.storages.fail_stale_trials(self.study)

    def mend(self) -> None:
        """Adds a row for every trial that needs one."""
        for trial, standing in enumerate(self.standings()):
            if standing.state == "missing":
                self._add(trial, standing)

    def retry_failed(self) -> int:
        """Adds a row for every trial that failed. Returns for how many."""
        failed = [(trial, each) for trial, each in enumerate(self.standings()) if each.state == "failed"]
        for trial, standing in failed:
            self._add(trial, standing)
        return len(failed)

    def claim(self) -> Attempt | None:
        """The first trial that waits, now this process's; None if there is none."""
        for trial, rows in enumerate(self._rows()):
            for row in (row for row in _counting(rows) if row.state == TrialState.WAITING):
                row_id = self.storage.get_trial_id_from_study_id_trial_number(self.study_id, row.number)
                if self._won(row_id):
                    return self._attempt(trial, row_id)
        return None

    def heartbeat(self, attempt: Attempt, seconds: float) -> bool:
        """Whether the attempt is still this process's: if it was silent for too long, another has taken over.

        `seconds`: for how long it has been at work.
        """
        try:
            self.storage.record_heartbeat(attempt.row_id)
            attempt.row.set_user_attr("seconds", seconds)
        except optuna.exceptions.UpdateFinishedTrialError:
            return False
        return True

    def report(self, attempt: Attempt, step: int, value: float) -> None:
        attempt.row.report(value, step)

    def is_hopeless(self, attempt: Attempt) -> bool:
        """What the sweep's pruner thinks of it by the values reported so far."""
        return attempt.row.should_prune()

    # What an attempt has come to. If another process has taken over in the meantime, it does not count.

    def complete(self, attempt: Attempt, value: float) -> None:
        self.study.tell(attempt.row, value, skip_if_finished=True)

    def prune(self, attempt: Attempt) -> None:
        self.study.tell(attempt.row, state=TrialState.PRUNED, skip_if_finished=True)

    def fail(self, attempt: Attempt, error: str) -> None:
        """It will not be tried again unasked."""
        with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):
            attempt.row.set_user_attr("error", error)
        self.release(attempt)

    def release(self, attempt: Attempt) -> None:
        """Whoever comes next goes on with the trial."""
        self.study.tell(attempt.row, state=TrialState.FAIL, skip_if_finished=True)

    def standings(self) -> list[Standing]:
        """Of every trial, by its number."""
        return [_standing(rows, listed) for rows, listed in zip(self._rows(), self.sweep.trials, strict=True)]

    def _rows(self) -> list[list[FrozenTrial]]:
        """The rows of every trial, oldest first. Trials that another process has more are left out."""
        rows: list[list[FrozenTrial]] = [[] for _ in self.sweep.trials]
        for row in self.study.get_trials(deepcopy=False):
            if row.user_attrs["trial"] < len(rows):
                rows[row.user_attrs["trial"]].append(row)
        return rows

    def _add(self, trial: int, standing: Standing) -> None:
        """Another row for a trial that stands like this: it counts only if none has been added since."""
        self.study.enqueue_trial(standing.values, user_attrs={"trial": trial, "earlier": standing.rows})

    def _won(self, row_id: int) -> bool:
        try:
            # The heartbeat first: a process killed between the two has not taken the row with it.
            self.storage.record_heartbeat(row_id)
            return self.storage.set_trial_state_values(row_id, TrialState.RUNNING)
        except optuna.exceptions.UpdateFinishedTrialError:
            return False

    def _attempt(self, trial: int, row_id: int) -> Attempt:
        self.storage.set_trial_user_attr(row_id, "worker", f"process {os.getpid()} on {platform.node()}")
        # A seed for each trial: with one job at a time, a search that was killed goes on as it would have.
        self.study.sampler = self.sweep.sampler(trial)
        claimed = optuna.trial.Trial(self.study, row_id)
        values = {key: suggest(claimed, key, span) for key, span in self.sweep.distributions(trial).items()}
        return Attempt(trial, values | self.sweep.trials[trial], claimed, row_id)


def _counting(rows: list[FrozenTrial]) -> list[FrozenTrial]:
    """Those rows of a trial that were added by someone who had seen all the earlier ones."""
    return [row for earlier, row in enumerate(rows) if row.user_attrs["earlier"] == earlier]


def _standing(all_rows: list[FrozenTrial], listed: Values) -> Standing:
    rows = _counting(all_rows)
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
        sum(row.user_attrs.get("seconds", 0.0) for row in rows),
        len(all_rows),
    )


def _values(row: FrozenTrial) -> Values:
    return row.system_attrs["fixed_params"] | row.params
