"""A workdir: the folder with the whole record of a run, all that evaluation and translation need."""

import contextlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from transformer import files, fingerprints, locks
from transformer.config import loading
from transformer.config.keys import nearest
from transformer.config_types import Config
from transformer.environment import describe_environment, now
from transformer.errors import MALFORMED, UNREADABLE, UserError


class InUse(UserError):
    """Raised for a workdir that another process has locked."""


TOKENIZERS = ("tokenizer.model", "tokenizer.target.model")  # the second only if the vocabulary is not shared


class Workdir:
    """The paths in a workdir."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / loading.FILE_NAME
        self.environment = path / "environment.json"
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = (path / "checkpoints").resolve()  # Orbax refuses relative paths
        self.plans = path / "plans"  # of the latest epochs, which the processes of the run map into memory
        self.tensorboard = path / "tensorboard"
        self.profile = path / "profile"  # traces; absent without --profile
        self.evaluations = path / "evaluations"
        self.log = path / "log.txt"
        self.parent = path / "parent.json"  # the run whose parameters it began with; absent if they were random
        self.data = path / "data.json"  # how the folder of the data was made; absent if that has no record
        self.events = path / "events.jsonl"  # the rollbacks, one a line; absent if there were none
        self.averaged = path / "averaged.json"  # the run and steps whose mean scripts.average has written here
        self.shortlist = path / "shortlist.npz"  # for decoding.shortlist; absent unless scripts.shortlist has made it
        self.complete = path / "complete.json"
        self.contents = path / fingerprints.FILE_NAME
        self.tokenizers = [path / name for name in TOKENIZERS]
        self.inode = _inode(path)

    @property
    def written(self) -> list[Path]:
        """The files and folders that a run writes, whether they exist or not, but for its lock."""
        return [path for path in vars(self).values() if isinstance(path, Path) and path != self.path] + self.tokenizers

    def check_in_place(self, cause: Exception | None = None) -> None:
        """Raises UserError, from `cause`, if another folder or none is at the path now.

        To be called before writing what would make the folder again, or would belong to another run.
        """
        if self.inode not in (None, _inode(self.path)):
            raise UserError(
                f"--workdir={self.path}: was renamed, deleted or replaced while the run used it; to resume, run the "
                "same command with the new name of the folder"
            ) from cause

    def delete(self) -> None:
        """Deletes what a run writes, and the folder unless it has other files."""
        for path in (*self.written, self.path / ".lock"):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def is_of_a_run(self) -> bool:
        """Tells whether `config.json` is a run's. A start writes it before all else but its lock."""
        try:
            return {"schema_version", "model", "data", "training"} <= set(json.loads(self.config.read_bytes()))
        except UNREADABLE:
            return False

    def check_own(self) -> None:
        """Raises UserError if the folder is not a run's and has a file or folder that a run would write."""
        if self.is_of_a_run():
            return
        foreign = [path for path in self.written if os.path.lexists(path)]
        lock = self.path / ".lock"  # empty, or with the name of a process, if a start was killed at once
        if lock.exists() and (content := lock.read_bytes()) and not content.startswith(b"process "):
            foreign.append(lock)
        if foreign:
            raise UserError(
                f"--workdir={self.path}: has {foreign[0].name}, which a run would write, but no config.json of a "
                "run; name a new folder"
            )

    def mark_complete(self, step: int) -> None:
        files.write_json(self.complete, {"step": step})

    def is_complete(self) -> bool:
        return self.complete.exists()

    def has_begun(self) -> bool:
        """Tells whether a run has left results here. A plan, or a start that failed over its data, leaves none."""
        has_saved = any("orbax-checkpoint-tmp" not in path.name for path in self.checkpoints.glob("*"))
        return self.config.exists() and (has_saved or self.metrics.exists())


def create_workdir(path: Path, config: Config) -> Workdir:
    """Creates the workdir of a run, or replaces what a start that never began training has left there.

    That includes the tokenizer, which then comes from the cache or the parent again, unless they or the data have
    changed.

    Raises UserError if `path` cannot be a folder, or has files that no run wrote.
    """
    workdir = Workdir(path)
    make_folder(path)
    workdir.check_own()
    for stale in (workdir.contents, workdir.parent, workdir.data, *workdir.tokenizers):
        stale.unlink(missing_ok=True)
    loading.save(config, path)
    files.write_json(workdir.environment, describe_environment() | {"resumed": []})
    return workdir


@contextlib.contextmanager
def lock_workdir(path: Path) -> Iterator[None]:
    """Locks the workdir during the block. The lock of a process ends when the process dies.

    What a run has written in a folder made here is deleted if the block raises UserError before the training loop.
    Raises InUse, naming the process, if another one holds the lock, and UserError if the block fails because the
    folder is no longer at its path.
    """
    is_new = not path.exists()
    make_folder(path)
    with (path / ".lock").open("a+", encoding="utf-8") as file:
        if not locks.try_lock(file):
            file.seek(0)
            raise InUse(f"--workdir={path}: is in use by {file.read()}; wait for it, or name another")
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}, started {now()}")
        file.flush()
        workdir = Workdir(path)
        try:
            yield
        except Exception as error:
            workdir.check_in_place(error)
            has_trained = workdir.tensorboard.exists()  # the loop creates it first
            if isinstance(error, UserError) and is_new and not has_trained:
                workdir.delete()
            raise


@contextlib.contextmanager
def shadow(path: Path) -> Iterator[Path]:
    """Yields a temporary folder for a plan, which must not change the workdir: with links to the files of its run.

    Writing a file replaces its link. The folder of the plans of epochs is not linked, since its contents change.
    Raises UserError, naming the workdir, if the block does, or if it has files that no run wrote.
    """
    Workdir(path).check_own()
    with tempfile.TemporaryDirectory() as folder:
        if Workdir(path).has_begun():
            for entry in path.iterdir():
                if entry.name not in ("plans", ".lock"):
                    (Path(folder) / entry.name).symlink_to(entry.resolve())
        try:
            yield Path(folder)
        except UserError as error:
            raise UserError(str(error).replace(folder, str(path))) from error


def _inode(path: Path) -> int | None:
    with contextlib.suppress(OSError):
        return path.stat().st_ino
    return None


def split_names(names: str) -> list[str]:
    """Returns the folders in DIR,DIR,... A comma in the name of one folder separates nothing."""
    return [names] if Path(names).is_dir() else names.split(",")


def open_existing(path: Path, flag: str = "--workdir") -> tuple[Workdir, Config]:
    """Returns the workdir and the configuration of a run. Raises UserError, naming the flag, if it cannot be used."""
    if not path.is_dir():
        siblings = [str(folder) for folder in path.parent.glob("*") if (folder / loading.FILE_NAME).exists()]
        raise UserError(f"{flag}={path}: no such folder{nearest(str(path), siblings)}")
    return Workdir(path), loading.load(path)


def open_all(paths: Sequence[Path]) -> list[tuple[Workdir, Config]]:
    """Opens several runs. Raises UserError if one cannot be used, or is given twice."""
    opened, seen = [], set()
    for path in paths:
        opened.append(open_existing(path))
        if path.resolve() in seen:
            raise UserError(f"{path}: is given twice; give it once")
        seen.add(path.resolve())
    return opened


def make_folder(path: Path, flag: str = "--workdir") -> None:
    """Creates the folder, with its parents, unless it exists. Raises UserError, naming the flag, if it cannot."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in files.FULL_DISK:
            raise
        reason = f"{error.strerror}: {error.filename}"
        raise UserError(f"{flag}={path}: cannot be made ({reason}); name another folder") from error


def check_new(output: Path) -> None:
    """Raises UserError if `output` exists."""
    if output.exists():
        raise UserError(f"--output={output}: exists; delete it, or name another folder")


@contextlib.contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """Yields a temporary folder that becomes `output` after the block, or is deleted if the block raises.

    Raises UserError if `output` exists or cannot be made.
    """
    check_new(output)
    make_folder(output.parent, "--output")
    unfinished = output.with_name(f".{output.name}.{os.getpid()}.unfinished")
    unfinished.mkdir()
    try:
        yield unfinished
        unfinished.rename(output)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def read_environment(workdir: Workdir) -> dict[str, Any] | None:
    """Returns `environment.json`; None if it was deleted. Raises UserError if it is damaged."""
    if not workdir.environment.exists():
        return None
    try:
        record = json.loads(workdir.environment.read_text(encoding="utf-8"))
        if any(len(values) != 2 for start in record["resumed"] for values in start["changes"].values()):
            raise ValueError("a change must have two values")
        if not all("commit" in start for start in (record, *record["resumed"])):
            raise ValueError("a start must have a commit")
    except MALFORMED as error:
        raise UserError(f"{workdir.environment}: damaged ({error}); delete it to continue without it") from error
    return record


def read_averaged_steps(workdir: Workdir) -> list[int] | None:
    """Returns the steps whose mean the workdir holds; None for a run. Raises UserError if the record is damaged."""
    if not workdir.averaged.exists():
        return None
    try:
        return [int(step) for step in json.loads(workdir.averaged.read_bytes())["steps"]]
    except MALFORMED as error:
        raise UserError(f"{workdir.averaged}: damaged ({type(error).__name__}); run scripts.average again") from error
