"""A workdir: the folder with the whole record of a run, all that evaluation and translation need."""

import contextlib
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer import files, fingerprints, locks
from transformer.config import loading
from transformer.config.keys import flatten, freeze, nearest
from transformer.config_types import Config
from transformer.environment import describe_environment, now
from transformer.errors import UserError

# Keys that do not change what a run computes, so that they may differ when it resumes.
HOST_KEYS = (  # and between its processes
    "data.cache_dir",
    "data.workers",
    "data.prefetch",
    "data.wait_seconds",
    "training.stall_seconds",
)
PLACE_KEYS = (*HOST_KEYS, "mesh.data", "mesh.fsdp", "mesh.tensor")
RESUMABLE_KEYS = (*PLACE_KEYS, "data.path")  # fingerprints show whether data at another path is the same


class InUse(UserError):
    """Raised for a workdir that another process has locked."""


class Workdir:
    """The paths in a workdir, except those that `transformer.fingerprints` and `transformer.data.tokenizers` define."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / loading.FILE_NAME
        self.environment = path / "environment.json"
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = (path / "checkpoints").resolve()  # Orbax refuses relative paths
        self.tensorboard = path / "tensorboard"
        self.evaluations = path / "evaluations"
        self.log = path / "log.txt"
        self.events = path / "events.jsonl"  # the roll-backs, one a line; absent if there were none
        self.complete = path / "complete.json"

    def mark_complete(self, step: int) -> None:
        files.write_json(self.complete, {"step": step})

    def is_complete(self) -> bool:
        return self.complete.exists()

    def has_begun(self) -> bool:
        """Tells whether a run has left results here. A plan, or a start that failed over its data, leaves none."""
        has_saved = any("orbax-checkpoint-tmp" not in path.name for path in self.checkpoints.glob("*"))
        return self.config.exists() and (has_saved or self.metrics.exists())


def create_workdir(path: Path, config: Config) -> Workdir:
    """Creates the workdir of a run, or opens the existing one, and records the environment.

    Raises UserError if `path` cannot be a folder, or holds a run of another loading.
    """
    workdir = Workdir(path)
    check_same_run(workdir, config)
    make_folder(path)
    if not workdir.has_begun():
        _remove_stale(workdir, config)
    if workdir.has_begun() and workdir.environment.exists():
        record = _read_environment(workdir)
        record["resumed"].append(describe_environment())
    else:
        loading.save(config, path)
        record = describe_environment() | {"resumed": []}
    files.write_json(workdir.environment, record)
    return workdir


def record_data_path(workdir: Workdir, config: Config) -> None:
    """Records the present path of the data, for evaluations. The fingerprints must have been checked."""
    recorded = loading.load(workdir.path)
    if recorded.data.path != config.data.path:
        loading.save(freeze(flatten(recorded) | {"data.path": config.data.path}), workdir.path)


@contextlib.contextmanager
def lock_workdir(path: Path) -> Iterator[None]:
    """Locks the workdir during the block. The lock of a process ends when the process dies.

    Raises InUse, naming the process, if another one holds the lock.
    """
    make_folder(path)
    with (path / ".lock").open("a+", encoding="utf-8") as file:
        if not locks.try_lock(file):
            file.seek(0)
            raise InUse(f"--workdir={path}: is in use by {file.read()}; wait for it, or name another")
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}, started {now()}")
        file.flush()
        yield


def open_existing(path: Path) -> tuple[Workdir, Config]:
    """Returns the workdir and the configuration of a run. Raises UserError if there is none that can be used."""
    if not path.is_dir():
        siblings = [str(folder) for folder in path.parent.glob("*") if (folder / loading.FILE_NAME).exists()]
        raise UserError(f"--workdir={path}: no such folder{nearest(str(path), siblings)}")
    return Workdir(path), loading.load(path)


def check_same_run(workdir: Workdir, config: Config) -> None:
    """Raises UserError, with the differences, if a run of another configuration has begun in the workdir."""
    if not workdir.has_begun():
        return
    difference = loading.difference(loading.load(workdir.path), config)
    changed = [f"{key}: {values}" for key, values in difference.items() if key not in RESUMABLE_KEYS]
    if changed:
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        raise UserError(
            f"--workdir={workdir.path}: holds a run of another config ({'; '.join(changed[:5])}{more}); "
            f"resume it with --config={workdir.config}, or name another --workdir"
        )


def make_folder(path: Path) -> None:
    """Creates the folder, with its parents, unless it exists. Raises UserError if that is impossible."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in files.FULL_DISK:
            raise
        reason = f"{error.strerror}: {error.filename}"
        raise UserError(f"--workdir={path}: cannot be made ({reason}); name another folder") from error


def _read_environment(workdir: Workdir) -> dict[str, Any]:
    try:
        record = json.loads(workdir.environment.read_text(encoding="utf-8"))
        if not isinstance(record["resumed"], list):
            raise ValueError("resumed must be a list")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{workdir.environment}: damaged ({error}); delete it to continue without it") from error
    return record


def _remove_stale(workdir: Workdir, config: Config) -> None:
    """Removes what a start that never began training has left for other data or another loading."""
    (workdir.path / fingerprints.FILE_NAME).unlink(missing_ok=True)
    if workdir.config.exists() and loading.difference(loading.load(workdir.path), config):
        for path in workdir.path.glob("tokenizer*.model"):
            path.unlink()
