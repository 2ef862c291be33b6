"""A workdir: the folder with the whole record of a run, all that evaluation and translation need."""

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

# the second only if the vocabulary is not shared
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
        # ids of the run in W&B and MLflow; absent without these
        self.trackers = path / "trackers.json"
        self.profile = path / "profile"  # traces; absent without --profile
        self.evaluations = path / "evaluations"
        self.log = path / "log.txt"
        # the run whose parameters it began with; absent if they were random
        self.parent = path / "parent.json"
        # how the folder of the data was made; absent if that has no record
        self.data = path / "data.json"
        self.events = path / "events.jsonl"  # the rollbacks, one a line; absent if there were none
        # the run and steps whose mean scripts.average has written here
        self.averaged = path / "averaged.json"
        # for decoding.shortlist; absent unless scripts.shortlist has made it
        self.shortlist = path / "shortlist.npz"
        self.complete = path / "complete.json"
        self.lock = path / ".lock"
        self.contents = path / CONTENTS
        self.tokenizers = [path / name for name in TOKENIZER_FILES]
        self.inode = os.stat(path).st_ino if os.path.exists(path) else None

    @property
    def written(self) -> list[Path]:
        """The files and folders that a run writes, whether they exist or not, but for its lock."""
        paths = [path for path in vars(self).values() if isinstance(path, Path)] + self.tokenizers
        return [path for path in paths if path not in (self.path, self.lock)]

    def check_in_place(self, cause: Exception | None = None) -> None:
        """Raises UserError, from `cause`, if another folder or none is at the path now, where no
        run may write.
        """
        if self.inode not in (None, Workdir(self.path).inode):
            raise UserError(
                f"--workdir={self.path}: was renamed, deleted or replaced while the run used it; to resume, run the "
                "same command with the new name of the folder"
            ) from cause

    def check_own(self) -> None:
        """Raises UserError if the folder has files that a run would write, but no `config.json`,
        its first one.
        """
        with contextlib.suppress(*UNREADABLE):
            if {"schema_version", "model", "data", "training"} <= set(
                json.loads(self.config.read_bytes())
            ):
                return
        foreign = [path for path in self.written if os.path.lexists(path)]
        # Empty, or with the name of a process, if a start was killed at once.
        if (
            self.lock.exists()
            and (content := self.lock.read_bytes())
            and not content.startswith(b"process ")
        ):
            foreign.append(self.lock)
        if foreign:
            raise UserError(
                f"--workdir={self.path}: has {foreign[0].name}, which a run would write, but no config.json of a "
                "run; name a new folder"
            )

    def delete(self) -> None:
        """Deletes what a run writes, and the folder unless it has other files."""
        for path in (*self.written, self.lock):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(
                missing_ok=True
            )
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def mark_complete(self, step: int) -> None:
        files.write_json(self.complete, {"step": step})

    def is_complete(self) -> bool:
        return self.complete.exists()

    def averaged_steps(self) -> list[int] | None:
        """Returns the steps whose mean the workdir holds; None for a run.

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
        """Tells whether a run has left results here.

        A plan, or a start that failed over its data, leaves none.
        """
        has_saved = any(
            "orbax-checkpoint-tmp" not in path.name for path in self.checkpoints.glob("*")
        )
        return self.config.exists() and (has_saved or self.metrics.exists())


def create_workdir(path: Path, config: Config) -> Workdir:
    """Creates a run's workdir, also in place of a start that never trained. Raises UserError for an
    unusable path.

    If that start had the same configuration, the run continues its runs in the trackers.
    """
    workdir = Workdir(path)
    files.make_folder(path, "--workdir")
    workdir.check_own()
    for stale in (workdir.contents, workdir.parent, workdir.data, *workdir.tokenizers):
        stale.unlink(missing_ok=True)
    earlier = workdir.config.read_bytes() if workdir.config.exists() else None
    loading.save(config, path)
    if workdir.config.read_bytes() != earlier:
        workdir.trackers.unlink(missing_ok=True)
    files.write_json(workdir.environment, describe_environment() | {"resumed": []})
    return workdir


@contextlib.contextmanager
def lock_workdir(path: Path) -> Iterator[None]:
    """Locks the workdir during the block, or until the process dies.

    Deletes what a run has written in a new folder if the block raises UserError before the training
    loop. Raises InUse if another process holds the lock, and UserError if the block fails because
    the folder is no longer at its path.
    """
    is_new = not path.exists()
    files.make_folder(path, "--workdir")
    workdir = Workdir(path)
    with workdir.lock.open("a+", encoding="utf-8") as file:
        if not locks.try_lock(file):
            file.seek(0)
            raise InUse(
                f"--workdir={path}: is in use by {file.read()}; wait for it, or name another"
            )
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}, started {now()}")
        file.flush()
        try:
            yield
        except Exception as error:
            workdir.check_in_place(error)
            # which the loop creates
            if isinstance(error, UserError) and is_new and not workdir.tensorboard.exists():
                workdir.delete()
            raise


@contextlib.contextmanager
def shadow(path: Path) -> Iterator[Path]:
    """Yields a temporary folder for a plan, which must not change the workdir, with links to the
    files of its run.

    Raises UserError, naming the workdir, if the block does, or if it has files that no run wrote.
    """
    Workdir(path).check_own()
    with tempfile.TemporaryDirectory() as folder:
        if Workdir(path).has_begun():
            for entry in path.iterdir():
                if entry.name != ".lock":  # plan and run write into it; other files are replaced
                    (Path(folder) / entry.name).symlink_to(entry.resolve())
        try:
            yield Path(folder)
        except UserError as error:
            raise UserError(str(error).replace(folder, str(path))) from error


def split_names(names: str) -> list[str]:
    """Returns the folders in DIR,DIR,... A comma in the name of one folder separates nothing."""
    return [names] if Path(names).is_dir() else names.split(",")


def open_existing(path: Path, flag: str = "--workdir") -> tuple[Workdir, Config]:
    """Returns the workdir and the configuration of a run.

    Raises UserError, naming the flag, if it cannot be used.
    """
    if not path.is_dir():
        siblings = [
            str(folder) for folder in path.parent.glob("*") if (folder / loading.FILE_NAME).exists()
        ]
        raise UserError(f"{flag}={path}: no such folder{nearest(str(path), siblings)}")
    return Workdir(path), loading.load(path)


def describe_note(config: Config) -> str:
    """Returns the note and the tags of a run."""
    return " ".join(
        filter(None, (config.training.note, *(f"#{tag}" for tag in config.training.tags)))
    )
