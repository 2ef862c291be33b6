"""Checkpoints: parameters, optimizer state and how far the run has got, written by Orbax in the background."""

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging

from transformer.checkpoints import checksums as seal
from transformer.checkpoints.restore import SCHEMA_VERSION, check_same_arrays, read_progress, readable, steps_in
from transformer.config.keys import flatten
from transformer.config_types import Config
from transformer.distributed import coordination as distributed
from transformer.errors import UserError
from transformer.training.progress import Progress
from transformer.training.state import TrainState
from transformer.workdir import Workdir

REPLACED = "replaced-"  # begins the name of a checkpoint while another of its step is written


def kept_by_number(steps: Sequence[int], settings) -> set[int]:
    """Which of these checkpoints, oldest first, are kept whatever their scores. `settings` is `config.checkpoint`."""
    # Where a run was interrupted must not decide which are left: `--average` would take others.
    due = [step for step in steps if step % settings.every == 0]
    forever = {step for step in steps if settings.keep_every and step % settings.keep_every == 0}
    return {steps[-1], *due[-settings.keep :], *forever}


class _Kept:
    """Orbax asks it which checkpoints to keep. (Its own `BestN` forgets scores when a run goes on, and of equals
    keeps the last, which is not the step in `Progress`.)

    Attributes:
      best: the step of the best validation so far.
      sound: the last step that is saved and before which no update was skipped: what a roll-back goes to.
    """

    def __init__(self, settings) -> None:
        self.settings, self.best, self.sound = settings, None, None

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        steps = [checkpoint.step for checkpoint in checkpoints]
        kept = kept_by_number(steps, self.settings)
        return [step in {self.best, self.sound, *kept} for step in steps]


class Checkpoints:
    """The checkpoints of a run: the newest `checkpoint.keep`, the best, and every `checkpoint.keep_every` steps.

    Use it in a `with` statement. Writing goes on in the background, and each becomes visible whole and sealed; leaving
    the block waits for the last.
    """

    def __init__(self, workdir: Workdir, config: Config):
        self.folder = workdir.checkpoints.resolve()  # Orbax takes no relative path
        self.config = config
        self.kept = _Kept(config.checkpoint)
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
        self._finish()
        self.manager.close()

    def save(self, state: TrainState, progress: Progress) -> None:
        """Starts to write a checkpoint of `progress.step`, in place of one that is there."""
        self._finish()
        if progress.step in self.manager.all_steps():  # left before its validation was done
            self._by_first(self._put_aside, progress.step)
            self.manager.reload()
        items = {
            "parameters": ocp.args.StandardSave(state.parameters),
            "optimizer": ocp.args.StandardSave(state.optimizer_state),
            "progress": ocp.args.JsonSave({"schema_version": SCHEMA_VERSION, **dataclasses.asdict(progress)}),
            "config": ocp.args.JsonSave(flatten(self.config)),
        }
        if state.average is not None:
            items["average"] = ocp.args.StandardSave(state.average)
        self.kept.best, self.writing = progress.best_step, progress.step
        if progress.skipped == 0:
            self.kept.sound = progress.step
        self.manager.save(progress.step, args=ocp.args.Composite(**items))

    def restore(self, abstract: TrainState) -> tuple[TrainState, Progress] | None:
        """The newest checkpoint that is whole, its arrays placed as `abstract`'s say; None if there is none yet.

        Damaged ones are set aside, with a warning.

        Raises:
          UserError: none is whole, or it is one of another model, or of another version of this code.
        """
        step = self._by_first(self._newest_whole)
        self.manager.reload()
        if step is None:
            return None
        state, progress = self._read(step, abstract)
        self.kept.best = progress.best_step
        self.kept.sound = self._by_first(self._newest_sound)
        return state, progress

    def drop_skipping(self) -> None:
        """Deletes the newest checkpoints, back to the last one before which no update was skipped."""
        self._finish()
        sound = self._by_first(self._newest_sound)
        for step in reversed(self.manager.all_steps()):
            if step == sound:
                return
            self.manager.delete(step)

    def _by_first(self, look: Callable[..., int | None], *arguments: int) -> int | None:
        """One process looks at the folder, or changes it, and says what it found to the others, which wait for it."""
        return distributed.broadcast(distributed.on_process_zero(look, *arguments), self.config.data.wait_seconds)

    def _finish(self) -> None:
        """Waits for what is being written; what it replaces is needed no more."""
        self.manager.wait_until_finished()
        distributed.on_process_zero(self._settle_replaced)

    def _put_aside(self, step: int) -> None:
        """Makes room for a checkpoint of the same step, without a moment in which there is none."""
        (self.folder / str(step)).rename(self.folder / f"{REPLACED}{step}")

    def _settle_replaced(self) -> None:
        """Deletes what has been replaced; where a run was killed before that, it comes back."""
        for path in self.folder.glob(f"{REPLACED}*"):
            replacement = path.with_name(path.name.removeprefix(REPLACED))
            if replacement.exists():
                shutil.rmtree(path)
            else:
                path.rename(replacement)

    def _newest_sound(self) -> int | None:
        steps = reversed(steps_in(self.folder))
        return next((step for step in steps if read_progress(self.folder / str(step)).skipped == 0), None)

    def _newest_whole(self) -> int | None:
        self._settle_replaced()
        self.manager.reload()
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
