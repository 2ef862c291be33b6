"""Workdirs: folders with the whole record of a run, which suffices to evaluate and translate."""

import contextlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from transformer.config import loading
from transformer.config.keys import nearest
from transformer.config.types import Config
from transformer.support import files, locks
from transformer.support.environment import CONTENTS, describe_environment, now
from transformer.support.errors import UNREADABLE, UserError

# The second file exists only if the vocabulary is not shared.
TOKENIZER_FILES = ("tokenizer.model", "tokenizer.target.model")


class InUse(UserError):
    """Raised for a workdir that another process has locked."""


class Workdir:
    """The paths in a workdir."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / loading.FILE_NAME
        self.environment = path / "environment.json"
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = (path / "checkpoints").resolve()  # Orbax refuses relative paths
        self.tensorboard = path / "tensorboard"
        # Ids of the run in W&B and MLflow; absent without these trackers.
        self.trackers = path / "trackers.json"
        self.profile = path / "profile"  # traces; absent without --profile
        self.evaluations = path / "evaluations"
        self.log = path / "log.txt"
        # The run that gave the initial parameters; absent if they were random.
        self.parent = path / "parent.json"
        # The origin of the data folder; absent if the folder has no record of it.
        self.data = path / "data.json"
        self.events = path / "events.jsonl"  # a line for each rollback; absent if there were none
        # The run and steps that scripts.average has averaged to this workdir.
        self.averaged = path / "averaged.json"
        # For decoding.shortlist; absent unless scripts.shortlist has made it.
        self.shortlist = path / "shortlist.npz"
        # For the confidence in translations; absent unless scripts.calibrate has made it.
        self.calibration = path / "calibration.json"
        self.complete = path / "complete.json"
        self.lock = path / ".lock"
        self.contents = path / CONTENTS
        self.tokenizers = [path / name for name in TOKENIZER_FILES]
        # Identifies the folder, even if it is renamed.
        self.inode = os.stat(path).st_ino if os.path.exists(path) else None

    @property
    def output_paths(self) -> list[Path]:
        """The files and folders that a run may write, except the lock."""
        paths = [path for path in vars(self).values() if isinstance(path, Path)]
        paths += self.tokenizers
        return [path for path in paths if path not in (self.path, self.lock)]

    def check_in_place(self, cause: Exception | None = None) -> None:
        """Raises UserError, from `cause`, if the path now has another folder or none.

        The run must not write there.
        """
        if self.inode not in (None, Workdir(self.path).inode):
            raise UserError(
                f"--workdir={self.path}: was renamed, deleted or replaced while the run used it; "
                "to resume, run the same command with the new name of the folder"
            ) from cause

    def check_ownership(self) -> None:
        """Raises UserError if the folder has files that a run would write, but no `config.json`.

        A run writes `config.json` first.
        """
        with contextlib.suppress(*UNREADABLE):
            config = json.loads(self.config.read_bytes())
            if {"schema_version", "model", "data", "training"} <= set(config):
                return
        # A folder that does not belong to a run must not lose its files.
        foreign = [path for path in self.output_paths if os.path.lexists(path)]
        # A start that was killed at once leaves a lock that is empty or names its process.
        content = self.lock.read_bytes() if self.lock.exists() else b""
        if content and not content.startswith(b"process "):
            foreign.append(self.lock)
        if foreign:
            raise UserError(
                f"--workdir={self.path}: has {foreign[0].name}, which a run would write, but no "
                "config.json of a run; name a new folder"
            )

    def delete(self) -> None:
        """Deletes what a run writes, and the folder unless it has other files."""
        for path in (*self.output_paths, self.lock):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def mark_complete(self, step: int) -> None:
        files.write_json(self.complete, {"step": step})

    def is_complete(self) -> bool:
        return self.complete.exists()

    def averaged_steps(self) -> list[int] | None:
        """Returns the steps of an averaged checkpoint; None for a run.

        Raises UserError if the record is damaged.
        """
        if not self.averaged.exists():
            return None
        return files.read_json(
            self.averaged,
            lambda record: list(map(int, record["steps"])),
            "run scripts.average again",
        )

    def has_begun(self) -> bool:
        """True if a run has left results here.

        A plan, or a start that failed because of its data, leaves none.
        """
        has_saved = any(
            "orbax-checkpoint-tmp" not in path.name for path in self.checkpoints.glob("*")
        )
        return self.config.exists() and (has_saved or self.metrics.exists())


def create_workdir(path: Path, config: Config) -> Workdir:
    """Creates a run's workdir, which may replace a start that never trained.

    If that start had the same configuration, the run continues its runs in the trackers. Raises
    UserError for an unusable path.
    """
    workdir = Workdir(path)
    files.make_folder(path, "--workdir")
    workdir.check_ownership()
    # The files of a start that never trained.
    records = (workdir.contents, workdir.parent, workdir.data, workdir.events, workdir.complete)
    for stale in (*records, *workdir.tokenizers):
        stale.unlink(missing_ok=True)
    previous = workdir.config.read_bytes() if workdir.config.exists() else None
    loading.save(config, path)
    if workdir.config.read_bytes() != previous:
        workdir.trackers.unlink(missing_ok=True)
    files.write_json(workdir.environment, describe_environment() | {"resumed": []})
    return workdir


@contextlib.contextmanager
def lock_workdir(path: Path) -> Iterator[None]:
    """Locks the workdir during the block, or until the process dies.

    If the block raises UserError before the training loop, a new folder is deleted again. Raises
    InUse if another process holds the lock, and UserError if the block fails because the folder is
    no longer at its path.
    """
    # Only a folder that this process has created may be deleted after an error.
    is_new = not path.exists()
    files.make_folder(path, "--workdir")
    workdir = Workdir(path)
    # The kernel releases the lock when the process dies, so the file may stay.
    with workdir.lock.open("a+", encoding="utf-8") as file:
        if not locks.try_lock(file):
            file.seek(0)
            raise InUse(
                f"--workdir={path}: is in use by {file.read()}; wait for it, or name another"
            )
        # The holder's description is for the message of other processes.
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}, started {now()}")
        file.flush()
        try:
            yield
        except Exception as error:
            workdir.check_in_place(error)
            # The loop creates the folder `tensorboard`.
            if isinstance(error, UserError) and is_new and not workdir.tensorboard.exists():
                workdir.delete()
            raise


@contextlib.contextmanager
def linked_workdir(path: Path) -> Iterator[Path]:
    """Yields a temporary folder for a plan, with links to the files of the run.

    The plan thus does not change the workdir. Raises UserError, which names the workdir, if the
    block does, or if the workdir has files of another program.
    """
    Workdir(path).check_ownership()
    with tempfile.TemporaryDirectory() as folder:
        if Workdir(path).has_begun():
            for entry in path.iterdir():
                # Other files are replaced when they are written, but a lock is written in place.
                if entry.name != ".lock":
                    (Path(folder) / entry.name).symlink_to(entry.resolve())
        # Messages name the workdir instead of the temporary folder.
        try:
            yield Path(folder)
        except UserError as error:
            raise UserError(str(error).replace(folder, str(path))) from error


def split_names(names: str) -> list[str]:
    """Returns the folders in DIR,DIR,... unless the text is itself the name of a folder."""
    return [names] if Path(names).is_dir() else names.split(",")


def open_existing(path: Path, flag: str = "--workdir") -> tuple[Workdir, Config]:
    """Returns the workdir and the configuration of a run.

    Raises UserError, which names the flag, if it cannot be used.
    """
    # A misspelled name is likely the name of another run in the same folder.
    if not path.is_dir():
        siblings = [
            str(folder) for folder in path.parent.glob("*") if (folder / loading.FILE_NAME).exists()
        ]
        raise UserError(f"{flag}={path}: no such folder{nearest(str(path), siblings)}")
    return Workdir(path), loading.load(path)
