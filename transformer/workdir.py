"""A workdir: the folder that is the whole record of a run. Evaluating and translating need nothing else of it."""

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import ml_collections

from transformer import config as configuration
from transformer import files
from transformer.config_keys import nearest
from transformer.errors import UserError

REPOSITORY = Path(__file__).resolve().parent.parent

# Where a run takes place, as opposed to what it computes: these may differ when it is resumed.
HOST = ("data.cache_dir", "data.workers", "data.prefetch", "data.wait_seconds")  # may differ among its processes too
PLACE = (*HOST, "mesh.data", "mesh.fsdp", "mesh.tensor")


@dataclass(frozen=True)
class Workdir:
    """The paths in a workdir. The tokenizer's files are named by `transformer.data.tokenizer`."""

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
    def complete(self) -> Path:
        """There once the run has made its last step or stopped early."""
        return self.path / "complete.json"

    def mark_complete(self, step: int) -> None:
        files.write_json(self.complete, {"step": step})

    def is_complete(self) -> bool:
        return self.complete.exists()


def create(path: Path, config: ml_collections.ConfigDict) -> Workdir:
    """Makes the workdir of a run, or takes up the one that is there, and records the environment.

    Raises:
      UserError: `path` cannot be a folder, or holds a run of another configuration.
    """
    workdir = Workdir(path)
    for folder in (path, *path.parents):
        if folder.is_file():
            raise UserError(f"--workdir={path}: {folder} is a file, must be a folder")
    check_same_run(workdir, config)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--workdir={path}: cannot be made ({error.strerror}); name another") from error
    if _has_begun(workdir) and workdir.environment.exists():
        record = json.loads(workdir.environment.read_text(encoding="utf-8"))
        record["resumed"].append(environment())
    else:
        _remove_stale_tokenizer(workdir, config)
        configuration.save(config, path)
        record = environment() | {"resumed": []}
    files.write_json(workdir.environment, record)
    return workdir


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
    changed = [f"{key}: {values}" for key, values in difference.items() if key not in PLACE]
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
    packages = [line.partition("==")[0] for line in requirements if "==" in line]
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
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


def _has_begun(workdir: Workdir) -> bool:
    """Whether there is anything to lose. What was only planned, or failed over its data, is soon made again."""
    return workdir.config.exists() and (workdir.checkpoints.exists() or workdir.metrics.exists())


def _remove_stale_tokenizer(workdir: Workdir, config: ml_collections.ConfigDict) -> None:
    """What an attempt with another configuration may have left: this run would take it for its own."""
    if workdir.config.exists() and configuration.difference(configuration.load(workdir.path), config):
        for path in workdir.path.glob("tokenizer*.model"):
            path.unlink()


def _git(*arguments: str) -> str | None:
    try:
        result = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()
