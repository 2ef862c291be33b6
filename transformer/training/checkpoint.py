"""Checkpoints: parameters, optimizer state and how far the run has got, written by Orbax in the background."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import ml_collections
import numpy as np
import orbax.checkpoint as ocp
from absl import logging

from transformer import distributed
from transformer.config_keys import flatten
from transformer.errors import UserError
from transformer.training import seal
from transformer.training.progress import Progress
from transformer.training.saved import SCHEMA_VERSION, check_same_arrays, read_progress, readable
from transformer.training.state import TrainState
from transformer.workdir import Workdir


class _Kept:
    """Orbax asks it which checkpoints to keep. (Its own `BestN` forgets scores when a run goes on, and of equals
    keeps the last, which is not the step in `Progress`.)"""

    def __init__(self, newest: int, every: int) -> None:
        self.newest, self.every, self.best = newest, every, None

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        steps = [checkpoint.step for checkpoint in checkpoints]
        forever = {step for step in steps if self.every and step % self.every == 0}
        return [step in {self.best, *steps[-self.newest :], *forever} for step in steps]


class Checkpoints:
    """The checkpoints of a run: the newest `checkpoint.keep`, the best, and every `checkpoint.keep_every` steps.

    Use it in a `with` statement. Writing goes on in the background, and each becomes visible whole and sealed; leaving
    the block waits for the last.
    """

    def __init__(self, workdir: Workdir, config: ml_collections.ConfigDict | ml_collections.FrozenConfigDict):
        self.folder = workdir.checkpoints.resolve()  # Orbax takes no relative path
        self.config = config
        self.kept = _Kept(config.checkpoint.keep, config.checkpoint.keep_every)
        self.writing: int | None = None
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self.kept,
            enable_async_checkpointing=True,
            async_options=ocp.AsyncOptions(post_finalization_callback=self._seal),
        )
        self.manager = ocp.CheckpointManager(self.folder, options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if distributed.lost_another(error):
            return  # the processes would meet there, and one never comes
        self.manager.wait_until_finished()
        self.manager.close()

    def save(self, state: TrainState, progress: Progress) -> None:
        """Starts to write a checkpoint of `progress.step`, in place of one that is there."""
        self.manager.wait_until_finished()
        if progress.step in self.manager.all_steps():  # left before its validation was done
            self.manager.delete(progress.step)
        items = {
            "parameters": ocp.args.StandardSave(state.parameters),
            "optimizer": ocp.args.StandardSave(state.optimizer_state),
            "progress": ocp.args.JsonSave({"schema_version": SCHEMA_VERSION, **dataclasses.asdict(progress)}),
            "config": ocp.args.JsonSave(flatten(self.config)),
        }
        if state.average is not None:
            items["average"] = ocp.args.StandardSave(state.average)
        self.kept.best, self.writing = progress.best_step, progress.step
        self.manager.save(progress.step, args=ocp.args.Composite(**items))

    def restore(self, abstract: TrainState) -> tuple[TrainState, Progress] | None:
        """The newest checkpoint that is whole, its arrays placed as `abstract`'s say; None if there is none yet.

        Damaged ones are set aside, with a warning.

        Raises:
          UserError: none is whole, or it is one of another model, or of another version of this code.
        """
        # One process looks, and says what it found to the others.
        step = distributed.from_first(distributed.in_first(self._newest_whole), self.config.data.wait_seconds)
        self.manager.reload()
        return None if step is None else self._read(step, abstract)

    def drop_skipping(self) -> None:
        """Deletes the newest checkpoints, back to the last one before which no update was skipped."""
        self.manager.wait_until_finished()
        for step in reversed(self.manager.all_steps()):
            if read_progress(self.folder / str(step)).skipped == 0:
                return
            self.manager.delete(step)

    def _newest_whole(self) -> int | None:
        for step in reversed(self.manager.all_steps()):
            folder = self.folder / str(step)
            damage = seal.damage(folder)
            if damage is None:
                return step
            aside = _set_aside(folder)
            logging.warning("%s: %s; it is now %s, and the one before is used.", folder, damage, aside.name)
        if aside := sorted(self.folder.glob("damaged-*")):
            raise UserError(f"{self.folder}: no checkpoint is whole; delete {aside[0].name} and its like to start anew")
        return None

    def _read(self, step: int, abstract: TrainState) -> tuple[TrainState, Progress]:
        wanted = {"parameters": abstract.parameters, "optimizer": abstract.optimizer_state}
        if abstract.average is not None:
            wanted["average"] = abstract.average
        folder = self.folder / str(step)
        with readable(folder, "delete this folder to go on from the one before"):
            progress = read_progress(folder)
            check_same_arrays(folder, wanted, self.config)
            items = {name: ocp.args.StandardRestore(tree) for name, tree in wanted.items()}
            found = self.manager.restore(step, args=ocp.args.Composite(**items))
        count, skipped = (_scalar(n, abstract.step.sharding) for n in (step, progress.skipped))
        return TrainState(count, skipped, found["parameters"], found["optimizer"], found.get("average")), progress

    def _seal(self) -> None:
        """Called by Orbax, in process 0, when all files are written, before their folder gets its name."""
        (unnamed,) = self.folder.glob(f"{self.writing}.orbax-checkpoint-tmp*")
        seal.write(unnamed)


def _scalar(value: int, sharding: jax.sharding.Sharding) -> jax.Array:
    return jax.make_array_from_callback((), sharding, lambda _: np.int32(value))


def _set_aside(folder: Path) -> Path:
    """Renames a damaged checkpoint, so that it can be looked at and its step be saved anew."""
    number = sum(1 for _ in folder.parent.glob(f"damaged-{folder.name}-*"))
    return folder.rename(folder.with_name(f"damaged-{folder.name}-{number}"))
