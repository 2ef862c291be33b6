"""The workdir of a sweep. Processes that share a sweep share the folder."""

import json
import secrets
import urllib.parse
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from absl import logging
from optuna.distributions import (
    check_distribution_compatibility,
    distribution_to_json,
    json_to_distribution,
)
from optuna.samplers import RandomSampler

from configs.rules import HOST, LOG, MESH
from scripts.sweeping.description import Sweep
from transformer.config.keys import declared_keys, keys_of
from transformer.support import files, locks
from transformer.support.errors import UserError
from transformer.workdir import Workdir

SCHEMA_VERSION = 2  # of sweep.json
# The longest wait; enqueueing all trials takes less.
LOCK_SECONDS = 600

Record = dict[str, Any]  # the content of sweep.json


class SweepFolder:
    """The paths in a sweep's workdir. `logs` has the output of the trials' processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record = path / "sweep.json"
        self.table = path / "trials.csv"
        self.trials = path / "trials"
        self.configs = path / "configs"
        self.logs = path / "logs"
        self.lock_file = path / ".sweep.lock"  # not .lock, the file of a training run
        self.database = path / "study.db"
        # The default storage is a URI of SQLite, since ? would end the path in a plain URL.
        # SQLAlchemy removes one quotation, SQLite the other.
        quoted = urllib.parse.quote(urllib.parse.quote(str(self.database)))
        self.storage = f"sqlite:///file:{quoted}?uri=true"

    def check_ownership(self) -> None:
        """Raises UserError if a sweep would overwrite a file of a folder that is not a sweep's."""
        # A sweep makes the lock before all other files.
        if self.record.exists() or self.lock_file.exists():
            return
        for path in (self.table, self.database, self.trials, self.configs):
            if path.exists():
                raise UserError(
                    f"--workdir={self.path}: has {path.name}, but no sweep.json; name a new folder"
                )
        if Workdir(self.path).config.exists():
            raise UserError(f"--workdir={self.path}: is the workdir of a run; name a new folder")

    def workdir(self, trial: int) -> Path:
        """Returns the workdir of a training run, or the folder for the result of an evaluation."""
        return self.trials / f"{trial:04}"

    def result(self, trial: int) -> Path:
        """Returns the file with the JSON object of an evaluation."""
        return self.workdir(trial) / "result.json"

    def lock(self) -> AbstractContextManager[None]:
        """Excludes all other processes and threads of the sweep while the block runs."""
        return locks.exclusive(
            self.lock_file, "another process of this sweep", "see if it still runs", LOCK_SECONDS
        )

    def describe(self, sweep: Sweep, task: Record) -> Record:
        """Returns the sweep's record, with the study's name.

        Raises:
          UserError: the folder holds another sweep, or this one in a form that Optuna's storage
          cannot extend.
        """
        space = {
            key: distribution_to_json(distribution) for key, distribution in sweep.space.items()
        }
        record = {
            "objective": sweep.objective,
            "trials": list(sweep.trials),
            "space": space,
            "task": task,
        }
        if self.record.exists():
            recorded = self.read()
            self._check_extension(recorded, record, sweep)
            name = recorded["study"]
        else:
            # unique in a database of several sweeps
            name = f"{self.path.resolve().name}-{secrets.token_hex(4)}"
        return {"schema_version": SCHEMA_VERSION, "study": name} | record

    def _check_extension(self, recorded: Record, record: Record, sweep: Sweep) -> None:
        """Raises UserError unless the sweep is the recorded one, perhaps with more trials."""
        difference = _difference(recorded, json.loads(json.dumps(record)))
        if difference:
            raise UserError(
                f"--workdir={self.path}: holds another sweep ({difference}); name another folder"
            )

        # New trials may widen the range of a number, but Optuna cannot add choices to a key.
        before = recorded_sweep(recorded)
        for key in before.keys:
            try:
                check_distribution_compatibility(before.distribution(key), sweep.distribution(key))
            except ValueError as error:
                raise UserError(
                    f"--workdir={self.path}: {key} has other values now ({error}); "
                    "name another folder"
                ) from None

    def read(self) -> Record:
        """Returns the sweep's record.

        Raises UserError if the record is missing, invalid or of another version.
        """
        if not self.record.exists():
            raise UserError(
                f"{self.record}: no such file, so {self.path} is not the folder of a sweep"
            )

        # Errors in here, such as a missing key, become UserErrors that name the file.
        def check(record: Record) -> Record:
            version = record["schema_version"]
            _ = record["task"]  # raises KeyError: the record is invalid
            if version != SCHEMA_VERSION:
                raise UserError(
                    f"schema_version={version}, must be {SCHEMA_VERSION}; name another folder"
                )
            return record

        return files.read_json(self.record, check, "name another folder")

    def complete_runs(self) -> list[Path]:
        """Returns the workdirs of the complete trials.

        Raises UserError if no trial is complete, or the trials are evaluations.
        """
        record = self.read()
        source = record["task"].get("from")
        if source is not None:
            raise UserError(
                f"{self.path}: its trials are evaluations of one run; "
                f"give {source}, or .json files in its evaluations"
            )

        # Trials that failed, were pruned or still run are not complete.
        num_trials = len(record["trials"])
        workdirs = map(self.workdir, range(num_trials))
        complete = [workdir for workdir in workdirs if Workdir(workdir).is_complete()]
        if not complete:
            raise UserError(
                f"{self.path}: none of its {num_trials} trials is complete; "
                "run the same scripts.sweep command to continue it"
            )

        logging.info(
            "%s: %d of %d trials are complete, %d left out.",
            self.path,
            len(complete),
            num_trials,
            num_trials - len(complete),
        )
        return complete


def recorded_sweep(record: Record) -> Sweep:
    """Returns the recorded sweep, for a report without its file.

    The record does not have the sampler and the pruner.
    """
    space = {key: json_to_distribution(text) for key, text in record["space"].items()}
    return Sweep(tuple(record["trials"]), space, record["objective"], RandomSampler, None)


def _difference(recorded: Record, record: Record) -> str:
    """Describes how a sweep differs from the recorded one. Returns "" if it does not.

    A sweep may have further trials after the recorded ones.
    """
    # The recorded trials must be the first trials of the sweep.
    names = ["objective", "space"]
    if record["trials"][: len(recorded["trials"])] != recorded["trials"]:
        names.append("trials")
    pairs = [(f"its {name}", recorded[name], record[name]) for name in names]
    # The record lacks keys that base.py did not have yet when the sweep began.
    declared = {key: declaration.default for key, declaration in declared_keys().items()}
    defaults = json.loads(json.dumps(declared))
    before = defaults | recorded["task"]
    after = defaults | record["task"]
    ignored = keys_of(MESH, HOST, LOG)  # older records have some of them
    for key in before | after:
        if key not in ignored:
            pairs.append((key, before.get(key), after.get(key)))
    return "; ".join(f"{name}: {old} -> {new}" for name, old, new in pairs if old != new)[:500]
