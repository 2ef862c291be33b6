"""The folder of a sweep: what it varies, and where its ledger is. Processes that share a sweep share the folder."""

import json
import secrets
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import sqlalchemy
from optuna.distributions import distribution_to_json, json_to_distribution
from optuna.samplers import RandomSampler

from scripts.sweeping.description import Sweep
from transformer import files, locks
from transformer.errors import UserError

SCHEMA_VERSION = 1  # of sweep.json
BEFORE_RECORD = (".sweep", "study.db")  # how the names begin of what a new sweep makes before its record


class Folder:
    """Its files. `logs` has the output of every trial's process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record, self.table = path / "sweep.json", path / "trials.csv"
        self.trials, self.configs, self.logs = path / "trials", path / "configs", path / "logs"

    @property
    def storage(self) -> str:
        """The ledger's URL unless the user names another."""
        return f"sqlite:///{self.path / 'study.db'}"

    def turn(self, seconds: int) -> AbstractContextManager[None]:
        """One process at a time makes what a new sweep needs. It takes a moment.

        Raises UserError if another process has been at it for so many seconds.
        """
        lock = self.path / ".sweep.lock"  # not a run's `.lock`: that is its trainer's
        return locks.turn(lock, "another process that begins this sweep", "see if it still does", seconds)

    def workdir(self, trial: int) -> Path:
        """Of a trial that is trained."""
        return self.trials / f"{trial:04}"

    def workdirs(self, trials: int) -> list[Path]:
        """Of the run that each of so many trials trains or evaluates."""
        source = self.read()["task"].get("from")
        return [self.workdir(trial) if source is None else Path(source) for trial in range(trials)]

    def record_of(self, sweep: Sweep, identity: dict[str, Any], url: str) -> dict[str, Any]:
        """What is to be recorded of the sweep, under the name that its study has or is to have.

        Raises:
          UserError: the folder holds something else or another sweep, or its ledger is elsewhere.
        """
        described = _describe(sweep) | {"task": identity, "storage": _place(url)}
        described = json.loads(json.dumps(described))
        # Listed first: another process may be about to write the record, and more after it.
        others = [path.name for path in self.path.glob("*") if not path.name.startswith(BEFORE_RECORD)]
        if self.record.exists():
            saved = self.read()
            self.check_storage(saved, url)
            if changed := _difference(saved, described):
                raise UserError(f"--workdir={self.path}: holds another sweep ({changed}); name another folder")
            name = saved["study"]
        elif others:
            raise UserError(f"--workdir={self.path}: holds {min(others)} and no sweep; name a new folder")
        else:
            name = f"{self.path.resolve().name}-{secrets.token_hex(4)}"
        return {"schema_version": SCHEMA_VERSION, "study": name} | described

    def check_storage(self, record: dict[str, Any], url: str) -> None:
        """Raises UserError if the sweep's ledger is not where the URL says."""
        if record["storage"] != _place(url):
            backend, database = record["storage"]
            raise UserError(f"--workdir={self.path}: its ledger is in {backend}, {database}; name that by --storage")

    def write(self, record: dict[str, Any]) -> None:
        files.write_json(self.record, record)

    def read(self) -> dict[str, Any]:
        """The record. Raises UserError if there is none that can be used."""
        try:
            record = json.loads(self.record.read_text(encoding="utf-8"))
            if record["schema_version"] != SCHEMA_VERSION:
                raise ValueError(f"schema_version={record['schema_version']}, must be {SCHEMA_VERSION}")
        except FileNotFoundError:
            raise UserError(f"{self.record}: no such file, so {self.path} is not the folder of a sweep") from None
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{self.record}: cannot be used ({error}); name another folder") from None
        return record


def recorded_sweep(record: dict[str, Any]) -> Sweep:
    """What is known of a sweep without its file: all but how trials are chosen and given up."""
    space = {key: json_to_distribution(text) for key, text in record["space"].items()}
    return Sweep(tuple(record["trials"]), space, record["objective"], RandomSampler, None)


def _describe(sweep: Sweep) -> dict[str, Any]:
    space = {key: distribution_to_json(distribution) for key, distribution in sweep.space.items()}
    return {"objective": sweep.objective, "trials": list(sweep.trials), "space": space}


def _place(url: str) -> list[str]:
    """What of a storage's URL is the same on all machines."""
    parsed = sqlalchemy.engine.make_url(url)
    database = parsed.database or ""
    backend = parsed.get_backend_name()
    return [backend, Path(database).name if backend == "sqlite" else database]


def _difference(saved: dict[str, Any], described: dict[str, Any]) -> str:
    """What tells the sweeps apart, in words; empty if nothing does. A search may have more trials than it had."""
    is_longer = bool(described["space"]) and len(described["trials"]) > len(saved["trials"])
    for name in ("objective", "space", "trials"):
        if saved[name] != described[name] and not (name == "trials" and is_longer):
            return f"its {name}: {_short(saved[name])} -> {_short(described[name])}"
    old, new = saved["task"], described["task"]
    keys = [key for key in old | new if old.get(key) != new.get(key)]
    return "; ".join(f"{key}: {old.get(key)} -> {new.get(key)}" for key in keys[:5])


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
