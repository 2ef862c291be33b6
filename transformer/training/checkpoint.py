"""Checkpoints: parameters, optimizer state and how far the run has got, written by Orbax in the background."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import ml_collections
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from flax.nnx import statelib
from orbax.checkpoint import checkpoint_managers

from transformer.data.loader import Position
from transformer.errors import UserError
from transformer.training.state import TrainState
from transformer.workdir import Workdir

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Progress:
    """How far a run has got, beside what is in `TrainState`. Written into every checkpoint.

    epoch, batch: the next batch. examples, tokens: sentence pairs and target tokens trained on. seconds: spent so far,
    over all starts. best_score is the best validation's, of `checkpoint.best_metric`; None before the first.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    examples: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best_score: float | None = None
    best_step: int | None = None
    validations_since_best: int = 0

    @property
    def position(self) -> Position:
        return Position(self.epoch, self.batch)

    def validated(self, score: float, metric: str) -> "Progress":
        """After a validation at this step: the best so far, and how many there have been since."""
        higher = metric == "bleu"
        if self.best_score is None or (score > self.best_score if higher else score < self.best_score):
            return dataclasses.replace(self, best_score=score, best_step=self.step, validations_since_best=0)
        return dataclasses.replace(self, validations_since_best=self.validations_since_best + 1)


class Checkpoints:
    """The checkpoints of a run: the newest `checkpoint.keep` and the best. Use it in a `with` statement.

    Writing goes on in the background and each becomes visible whole; leaving the block waits for the last.
    """

    def __init__(self, workdir: Workdir, config: ml_collections.FrozenConfigDict):
        policies = [
            checkpoint_managers.LatestN(config.keep),
            checkpoint_managers.BestN(
                get_metric_fn=lambda metrics: metrics["score"],
                reverse=config.best_metric == "loss",
                n=1,
                keep_checkpoints_without_metrics=False,
            ),
        ]
        options = ocp.CheckpointManagerOptions(
            preservation_policy=checkpoint_managers.AnyPreservationPolicy(policies),
            enable_async_checkpointing=True,
        )
        self.manager = ocp.CheckpointManager(workdir.checkpoints.resolve(), options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_) -> None:
        self.manager.wait_until_finished()
        self.manager.close()

    def save(self, state: TrainState, progress: Progress, score: float | None) -> None:
        """Starts to write a checkpoint of `progress.step`; `score` is that of its validation, if it had one."""
        if progress.step in self.manager.all_steps():
            return
        items = {
            "parameters": ocp.args.StandardSave(state.parameters),
            "optimizer": ocp.args.StandardSave(state.optimizer_state),
            "progress": ocp.args.JsonSave({"schema_version": SCHEMA_VERSION, **dataclasses.asdict(progress)}),
        }
        if state.average is not None:
            items["average"] = ocp.args.StandardSave(state.average)
        metrics = None if score is None else {"score": score}
        self.manager.save(progress.step, args=ocp.args.Composite(**items), metrics=metrics)

    def restore(self, abstract: TrainState) -> tuple[TrainState, Progress] | None:
        """The newest checkpoint, its arrays placed as `abstract`'s say; None if there is none yet."""
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
        found = self.manager.restore(step, args=ocp.args.Composite(**items))
        progress = _read_progress(found["progress"])
        count = jax.device_put(np.int32(progress.step), abstract.step.sharding)
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
    folder = Workdir(workdir).checkpoints
    steps = sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit())
    if not steps:
        raise UserError(f"--workdir={workdir}: has no checkpoint yet; train it first")
    step = _choose(folder, which, steps)
    chosen = [other for other in steps if other <= step][-average:]
    if len(chosen) < average:
        logging.warning("Averaging %d checkpoints, not %d: no more are kept up to step %d.", len(chosen), average, step)
    total = None
    for each in chosen:
        parameters = _load(folder / str(each))
        total = parameters if total is None else jax.tree.map(np.add, total, parameters)
    return jax.tree.map(lambda x: x / np.float32(len(chosen)), total), step, chosen


def _choose(folder: Path, which: str, steps: list[int]) -> int:
    if which == "last":
        return steps[-1]
    if which == "best":
        best = _load_progress(folder / str(steps[-1])).best_step
        return steps[-1] if best is None else best
    if not which.isdigit() or int(which) not in steps:
        raise UserError(f"--checkpoint={which}: must be best, last or a step there is: {', '.join(map(str, steps))}")
    return int(which)


def _load(folder: Path) -> dict:
    item = "average" if (folder / "average").exists() else "parameters"
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            path = (folder / item).resolve()
            tree = checkpointer.metadata(path).item_metadata.tree
            as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
            restored = checkpointer.restore(path, args=ocp.args.PyTreeRestore(restore_args=as_numpy))
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder}: this checkpoint cannot be read ({_first_line(error)}); try another") from error
    return statelib.restore_int_paths(restored)


def _load_progress(folder: Path) -> Progress:
    try:
        with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as checkpointer:
            return _read_progress(checkpointer.restore((folder / "progress").resolve()))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: this checkpoint cannot be read ({_first_line(error)}); try another") from error


def _read_progress(record: dict[str, Any]) -> Progress:
    values = dict(record)
    version = values.pop("schema_version")
    if version != SCHEMA_VERSION:
        raise UserError(f"the checkpoint has schema version {version}, and this code reads {SCHEMA_VERSION}: update it")
    return Progress(**values)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
