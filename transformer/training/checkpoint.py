"""Checkpoints: parameters, optimizer state and how far the run has got, written by Orbax in the background."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import ml_collections
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from flax.nnx import statelib

from transformer.errors import UserError
from transformer.training.progress import Progress
from transformer.training.state import TrainState
from transformer.workdir import Workdir

SCHEMA_VERSION = 1


class _NewestAndBest:
    """Orbax asks it which checkpoints to keep. (Its own `BestN` forgets scores when a run goes on, and of equals
    keeps the last, which is not the step in `Progress`.)"""

    def __init__(self, keep: int) -> None:
        self.keep, self.best = keep, None

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        newest = [checkpoint.step for checkpoint in checkpoints][-self.keep :]
        return [checkpoint.step in (self.best, *newest) for checkpoint in checkpoints]


class Checkpoints:
    """The checkpoints of a run: the newest `checkpoint.keep` and the best. Use it in a `with` statement.

    Writing goes on in the background and each becomes visible whole; leaving the block waits for the last.
    """

    def __init__(self, workdir: Workdir, config: ml_collections.ConfigDict | ml_collections.FrozenConfigDict):
        self.kept = _NewestAndBest(config.keep)
        options = ocp.CheckpointManagerOptions(preservation_policy=self.kept, enable_async_checkpointing=True)
        self.manager = ocp.CheckpointManager(workdir.checkpoints.resolve(), options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_) -> None:
        self.manager.wait_until_finished()
        self.manager.close()

    def save(self, state: TrainState, progress: Progress) -> None:
        """Starts to write a checkpoint of `progress.step`."""
        if progress.step in self.manager.all_steps():
            return
        items = {
            "parameters": ocp.args.StandardSave(state.parameters),
            "optimizer": ocp.args.StandardSave(state.optimizer_state),
            "progress": ocp.args.JsonSave({"schema_version": SCHEMA_VERSION, **dataclasses.asdict(progress)}),
        }
        if state.average is not None:
            items["average"] = ocp.args.StandardSave(state.average)
        self.kept.best = progress.best_step
        self.manager.save(progress.step, args=ocp.args.Composite(**items))

    def restore(self, abstract: TrainState) -> tuple[TrainState, Progress] | None:
        """The newest checkpoint, its arrays placed as `abstract`'s say; None if there is none yet.

        Raises:
          UserError: it cannot be read.
        """
        step = self.manager.latest_step()
        if step is None:
            return None
        items = {
            "parameters": ocp.args.StandardRestore(abstract.parameters),
            "optimizer": ocp.args.StandardRestore(abstract.optimizer_state),
            "progress": ocp.args.JsonRestore(),
        }
        if abstract.average is not None:
            items["average"] = ocp.args.StandardRestore(abstract.average)
        with _readable(Path(self.manager.directory) / str(step), "delete this folder to go on from the one before"):
            found = self.manager.restore(step, args=ocp.args.Composite(**items))
            progress = _read_progress(found["progress"])
        count = jax.make_array_from_callback((), abstract.step.sharding, lambda _: np.int32(progress.step))
        average = None if abstract.average is None else found["average"]
        return TrainState(count, found["parameters"], found["optimizer"], average), progress


def load_parameters(workdir: Path, which: str, average: int) -> tuple[dict, int, list[int]]:
    """Parameters to decode with, as NumPy arrays, from a run's workdir.

    Args:
      workdir: the run's folder.
      which: "best", "last" or a step.
      average: how many checkpoints to take the mean of: the newest at or before the chosen one.

    Returns:
      (parameters, the chosen step, the steps averaged, oldest first). With training.ema_decay, the averages.

    Raises:
      UserError: there is no such checkpoint, or it cannot be read.
    """
    folder = Workdir(workdir).checkpoints.resolve()  # Orbax takes no relative path
    steps = sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit())
    if not steps:
        raise UserError(f"--workdir={workdir}: has no checkpoint yet; train it first")
    step = _choose(folder, which, steps)
    chosen = [other for other in steps if other <= step][-average:]
    if len(chosen) < average:
        logging.warning("Averaging %d checkpoints, not %d: no more are kept up to step %d.", len(chosen), average, step)
    total = None
    for each in chosen:
        _, parameters = _load(folder / str(each), ("average", "parameters"))
        total = parameters if total is None else jax.tree.map(np.add, total, parameters)
    return jax.tree.map(lambda x: x / np.float32(len(chosen)), total), step, chosen


def _choose(folder: Path, which: str, steps: list[int]) -> int:
    if which == "last":
        return steps[-1]
    if which == "best":
        best = _load(folder / str(steps[-1]), ())[0].best_step
        if best is not None and best not in steps:
            raise UserError(f"--checkpoint=best: {folder / str(best)} is gone; name last or one of {_listed(steps)}")
        return steps[-1] if best is None else best
    if not which.isdigit() or int(which) not in steps:
        raise UserError(f"--checkpoint={which}: must be best, last or a step there is: {_listed(steps)}")
    return int(which)


def _listed(steps: list[int]) -> str:
    return ", ".join(map(str, steps))


def _load(folder: Path, wanted: tuple[str, ...]) -> tuple[Progress, dict]:
    """Progress, and the first item of `wanted` that the checkpoint has, as NumPy arrays; {} if none is wanted."""
    handlers = {item: ocp.PyTreeCheckpointHandler() for item in ("parameters", "optimizer", "average")}
    handler = ocp.CompositeCheckpointHandler(progress=ocp.JsonCheckpointHandler(), **handlers)
    with _readable(folder, "try another"), ocp.Checkpointer(handler) as checkpointer:
        items = {"progress": ocp.args.JsonRestore()}
        there = checkpointer.metadata(folder).item_metadata
        item = next((name for name in wanted if (folder / name).exists()), None)
        if wanted:
            if item is None or there[item] is None:
                raise KeyError(f"{wanted[-1]} missing or damaged")
            as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), there[item].tree)
            items[item] = ocp.args.PyTreeRestore(restore_args=as_numpy)
        found = checkpointer.restore(folder, args=ocp.args.Composite(**items))
        progress = _read_progress(found["progress"])
    return progress, statelib.restore_int_paths(found[item]) if wanted else {}


@contextlib.contextmanager
def _readable(folder: Path, advice: str) -> Iterator[None]:
    """Turns what Orbax raises for files that are missing or damaged into a UserError."""
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        # The message of a KeyError is quoted by str().
        message = str(error.args[0] if isinstance(error, KeyError) else error) or type(error).__name__
        raise UserError(f"{folder}: this checkpoint cannot be read ({message.splitlines()[0]}); {advice}") from error


def _read_progress(record: dict[str, Any]) -> Progress:
    values = dict(record)
    version = values.pop("schema_version")
    if version != SCHEMA_VERSION:
        raise UserError(f"the checkpoint has schema version {version}, and this code reads {SCHEMA_VERSION}: update it")
    return Progress(**values)
