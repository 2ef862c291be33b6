"""A workdir: the folder that is the whole record of a run. Evaluating and translating need nothing else of it."""

import contextlib
import datetime
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import ml_collections

from transformer import files, locks
from transformer import fingerprints as contents
from transformer.config import loading as configuration
from transformer.config.keys import flatten, freeze, nearest
from transformer.errors import UserError

REPOSITORY = Path(__file__).resolve().parent.parent

# Where a run takes place, as opposed to what it computes: these may differ when it is resumed.
HOST = (  # may differ among its processes too
    "data.cache_dir",
    "data.workers",
    "data.prefetch",
    "data.wait_seconds",
    "training.stall_seconds",
)
PLACE = (*HOST, "mesh.data", "mesh.fsdp", "mesh.tensor")
MAY_DIFFER = (*PLACE, "data.path")  # that moved data are the same is told by their digests in `contents`


class InUse(UserError):
    """A process is at work in a workdir."""


@dataclass(frozen=True)
class Workdir:
    """The paths in a workdir, except those that `transformer.fingerprints` and `data.tokenizers` define."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / configuration.FILE_NAME

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def evaluations(self) -> Path:
        return self.path / "evaluations"

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    @property
    def events(self) -> Path:
        """What befell the run and left its mark on the record: roll-backs. Only there if there were any."""
        return self.path / "events.jsonl"

    @property
    def complete(self) -> Path:
        """There once the run has made its last step or stopped early."""
        return self.path / "complete.json"

    def mark_complete(self, step: int) -> None:
        files.write_json(self.complete, {"step": step})

    def record_rollback(self, number: int, step: int, to_step: int) -> None:
        """Notes the `number`-th roll-back, once: a run killed after it comes by the same place again."""
        lines = self.events.read_text(encoding="utf-8").splitlines() if self.events.exists() else []
        earlier = [line for line in lines if _rollback_number(line) < number]
        event = {"event": "rollback", "number": number, "step": step, "to_step": to_step}
        files.write_text(self.events, "".join(f"{line}\n" for line in [*earlier, json.dumps(event)]))

    def is_complete(self) -> bool:
        return self.complete.exists()


def create(path: Path, config: ml_collections.ConfigDict) -> Workdir:
    """Makes the workdir of a run, or takes up the one that is there, and records the environment.

    Raises:
      UserError: `path` cannot be a folder, or holds a run of another configuration.
    """
    workdir = Workdir(path)
    check_same_run(workdir, config)
    make_folder(path)
    if not _has_begun(workdir):
        _remove_stale(workdir, config)
    if _has_begun(workdir) and workdir.environment.exists():
        record = _read_environment(workdir)
        record["resumed"].append(environment())
    else:
        configuration.save(config, path)
        record = environment() | {"resumed": []}
    files.write_json(workdir.environment, record)
    return workdir


def record_data_path(workdir: Workdir, config: ml_collections.ConfigDict) -> None:
    """Notes where the data of a run are now, for evaluations. They must be known to be those that it began with."""
    recorded = configuration.load(workdir.path)
    if recorded.data.path != config.data.path:
        configuration.save(freeze(flatten(recorded) | {"data.path": config.data.path}), workdir.path)


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Keeps the workdir for this process while the block runs. A process that dies lets go of it.

    Raises:
      InUse: another process holds it, which the message names.
      UserError: `path` cannot be a folder.
    """
    make_folder(path)
    with (path / ".lock").open("a+", encoding="utf-8") as file:
        if not locks.try_lock(file):
            file.seek(0)
            raise InUse(f"--workdir={path}: is in use by {file.read()}; wait for it, or name another")
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}, started {_now()}")
        file.flush()
        yield


def open_existing(path: Path) -> tuple[Workdir, ml_collections.FrozenConfigDict]:
    """A run's workdir and configuration. Raises `UserError` if it is not there or cannot be used."""
    if not path.is_dir():
        beside = [str(folder) for folder in path.parent.glob("*") if (folder / configuration.FILE_NAME).exists()]
        raise UserError(f"--workdir={path}: no such folder{nearest(str(path), beside)}")
    return Workdir(path), configuration.load(path)


def check_same_run(workdir: Workdir, config: ml_collections.ConfigDict) -> None:
    """Raises `UserError`, showing the difference, if a run of another configuration has begun in `workdir`."""
    if not _has_begun(workdir):
        return
    difference = configuration.difference(configuration.load(workdir.path), config)
    changed = [f"{key}: {values}" for key, values in difference.items() if key not in MAY_DIFFER]
    if changed:
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        raise UserError(
            f"--workdir={workdir.path}: holds a run of another config ({'; '.join(changed[:5])}{more}); "
            f"go on with it by --config={workdir.config}, or name another --workdir"
        )


def environment() -> dict[str, Any]:
    """What a run's numbers depend on beside its config. Commit and changes are None outside a git repository."""
    commit, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "--untracked-files=no")
    requirements = (REPOSITORY / "requirements.txt").read_text(encoding="utf-8").split()
    packages = [line.partition("==")[0].partition("[")[0] for line in requirements if "==" in line]
    return {
        "started": _now(),
        "commit": commit,
        "uncommitted_changes": None if changes is None else changes != "",
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "devices": [device.device_kind for device in jax.devices()],
        "processes": jax.process_count(),
        "packages": {name: importlib.metadata.version(name) for name in packages},
    }


def make_folder(path: Path) -> None:
    """Raises UserError if `path` cannot be a folder."""
    for folder in (path, *path.parents):
        if folder.is_file():
            raise UserError(f"--workdir={path}: {folder} is a file, must be a folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in files.FULL_DISK:
            raise
        raise UserError(f"--workdir={path}: cannot be made ({error.strerror}); name another") from error


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _read_environment(workdir: Workdir) -> dict[str, Any]:
    """What `create` recorded. Raises `UserError` if the file is damaged."""
    try:
        record = json.loads(workdir.environment.read_text(encoding="utf-8"))
        if not isinstance(record["resumed"], list):
            raise ValueError("resumed must be a list")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{workdir.environment}: damaged ({error}); delete it to go on without it") from error
    return record


def _rollback_number(line: str) -> float:
    """Of a line of `events.jsonl`; infinity for a damaged one."""
    try:
        return float(json.loads(line)["number"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return math.inf


def _has_begun(workdir: Workdir) -> bool:
    """Whether there is anything to lose. What was only planned, or failed over its data, is soon made again."""
    has_saved = any("orbax-checkpoint-tmp" not in path.name for path in workdir.checkpoints.glob("*"))
    return workdir.config.exists() and (has_saved or workdir.metrics.exists())


def _remove_stale(workdir: Workdir, config: ml_collections.ConfigDict) -> None:
    """What an attempt that never began may have left, with other data or another configuration."""
    (workdir.path / contents.FILE_NAME).unlink(missing_ok=True)
    if workdir.config.exists() and configuration.difference(configuration.load(workdir.path), config):
        for path in workdir.path.glob("tokenizer*.model"):
            path.unlink()


def _git(*arguments: str) -> str | None:
    try:
        result = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()
