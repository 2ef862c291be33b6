"""The workdir of a sweep. Processes that share a sweep share the folder."""

import itertools
import json
import secrets
import urllib.parse
from collections.abc import Sequence
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
LOCK_SECONDS = 600  # the longest wait; enqueueing all trials takes less


Record = dict[str, Any]  # the content of sweep.json


class Folder:
    """The paths in a sweep's workdir. `logs` has the output of every trial's process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record = path / "sweep.json"
        self.table = path / "trials.csv"
        self.trials = path / "trials"
        self.configs = path / "configs"
        self.logs = path / "logs"
        self.lock_file = path / ".sweep.lock"  # not .lock, the file of a training run
        self.database = path / "study.db"
        # The default, as a URI of SQLite: in a plain URL, ? would end the path. SQLAlchemy removes
        # one quotation.
        self.storage = (
            f"sqlite:///file:{urllib.parse.quote(urllib.parse.quote(str(self.database)))}?uri=true"
        )

    def check_own(self) -> None:
        """Raises UserError if the folder is not a sweep's and has a file or folder that a sweep
        would write.
        """
        foreign = [
            path.name
            for path in (self.table, self.database, self.trials, self.configs)
            if path.exists()
        ]
        # a sweep makes the lock first
        if foreign and not self.record.exists() and not self.lock_file.exists():
            raise UserError(
                f"--workdir={self.path}: has {foreign[0]}, but no sweep.json; name a new folder"
            )

    def workdir(self, trial: int) -> Path:
        """Returns the workdir of a trial that is a training run, or the folder for the result of an
        evaluation.
        """
        return self.trials / f"{trial:04}"

    def result(self, trial: int) -> Path:
        """Returns the file with the JSON object of a trial that is an evaluation."""
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
            if difference := _difference(recorded, json.loads(json.dumps(record))):
                raise UserError(
                    f"--workdir={self.path}: holds another sweep ({difference}); name another folder"
                )
            before = recorded_sweep(recorded)
            for key in before.keys:
                try:
                    check_distribution_compatibility(
                        before.distribution(key), sweep.distribution(key)
                    )
                except ValueError as error:
                    reason = f"{key} has other values now ({error})"
                    raise UserError(
                        f"--workdir={self.path}: {reason}; name another folder"
                    ) from None
            name = recorded["study"]
        else:
            # unique in a database of several sweeps
            name = f"{self.path.resolve().name}-{secrets.token_hex(4)}"
        return {"schema_version": SCHEMA_VERSION, "study": name} | record

    def read(self) -> Record:
        """Returns the sweep's record.

        Raises UserError if there is none, or it is invalid or of another version.
        """
        if not self.record.exists():
            raise UserError(
                f"{self.record}: no such file, so {self.path} is not the folder of a sweep"
            )

        def check(record: Record) -> Record:
            version = record["schema_version"]
            _ = record["task"]
            if version != SCHEMA_VERSION:
                raise UserError(
                    f"schema_version={version}, must be {SCHEMA_VERSION}; name another folder"
                )
            return record

        return files.read_json(self.record, check, "name another folder")

    def complete_runs(self) -> list[Path]:
        """Returns the workdirs of the complete trials.

        Raises UserError if there is none, or trials are evaluations.
        """
        record = self.read()
        if "from" in record["task"]:
            source = record["task"]["from"]
            raise UserError(
                f"{self.path}: its trials are evaluations of one run; give {source}, or .json files in its evaluations"
            )
        trials = [self.workdir(trial) for trial in range(len(record["trials"]))]
        complete = [path for path in trials if Workdir(path).is_complete()]
        if not complete:
            raise UserError(
                f"{self.path}: none of its {len(trials)} trials is complete; run the same scripts.sweep command to "
                "continue it"
            )
        left_out = len(trials) - len(complete)
        logging.info(
            "%s: %d of %d trials are complete, %d left out.",
            self.path,
            len(complete),
            len(trials),
            left_out,
        )
        return complete


def expand_sweeps(names: Sequence[str]) -> list[Path]:
    """Returns the paths, with the complete trials in place of a sweep's folder."""
    folders = map(Folder, map(Path, names))
    runs = [
        folder.complete_runs() if folder.record.exists() else [folder.path] for folder in folders
    ]
    return list(itertools.chain(*runs))


def recorded_sweep(record: Record) -> Sweep:
    """Returns the recorded sweep, to report it without its file: sampler and pruner are not
    recorded.
    """
    space = {key: json_to_distribution(text) for key, text in record["space"].items()}
    return Sweep(tuple(record["trials"]), space, record["objective"], RandomSampler, None)


def _difference(recorded: Record, record: Record) -> str:
    """Returns a description of the difference, or an empty string. A sweep may have more trials
    after those before.

    Keys that base.py had not yet when the sweep began had their defaults.
    """
    names = ["objective", "space"]
    if record["trials"][: len(recorded["trials"])] != recorded["trials"]:
        names.append("trials")
    pairs = [(f"its {name}", recorded[name], record[name]) for name in names]
    defaults = json.loads(
        json.dumps({key: declared.default for key, declared in declared_keys().items()})
    )
    before = defaults | recorded["task"]
    after = defaults | record["task"]
    ignored = keys_of(MESH, HOST, LOG)  # older records have some of them
    pairs += [
        (key, before.get(key), after.get(key)) for key in before | after if key not in ignored
    ]
    return "; ".join(f"{name}: {old} -> {new}" for name, old, new in pairs if old != new)[:500]
