"""The checkpoints of a run: saved by Orbax in the background, and restored."""

import dataclasses
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging

from transformer.checkpoints import checksums, restore, retention
from transformer.checkpoints.checksums import OPTIMIZER
from transformer.checkpoints.restore import SCHEMA_VERSION, read_progress, readable
from transformer.config.keys import flatten
from transformer.config.types import Config
from transformer.distributed import coordination
from transformer.training.progress import Progress
from transformer.training.state import TrainState
from transformer.workdir import Workdir


class Checkpoints(AbstractContextManager):
    """The checkpoints of a run, which Orbax saves in the background.

    Leaving the context waits for the last save.
    """

    def __init__(self, workdir: Workdir, config: Config):
        self.workdir = workdir
        self.folder = workdir.checkpoints
        self.config = config
        self.retention = retention.Retention(config.checkpoint)
        self.saving: Progress | None = None
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self.retention,
            cleanup_tmp_directories=True,  # of saves that a kill ended
            async_options=ocp.AsyncOptions(post_finalization_callback=self._write_record),
        )
        self.manager = ocp.CheckpointManager(self.folder, options=options)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if coordination.is_collective_failure(error):
            return  # Orbax would wait for the process that died
        self.manager.close()  # waits for the last save
        if error is None:  # otherwise the best may not be known yet
            coordination.on_process_zero(
                retention.remove_optimizer_states, self.folder, self.retention.best
            )

    def save(self, state: TrainState, progress: Progress) -> None:
        """Starts to save a checkpoint of `progress.step`."""
        self.manager.wait_until_finished()
        coordination.on_process_zero(self.workdir.check_in_place)
        self.retention.best = progress.best_step
        coordination.on_process_zero(
            retention.remove_optimizer_states, self.folder, self.retention.best
        )
        if progress.step in self.manager.all_steps():
            self._replace_progress(progress)
            return
        if progress.skipped == 0:
            self.retention.rollback = progress.step
        self.saving = progress
        items = {name: ocp.args.StandardSave(tree) for name, tree in _items(state).items()}
        self.manager.save(progress.step, args=ocp.args.Composite(**items))

    def restore(self, abstract: TrainState) -> tuple[TrainState, Progress] | None:
        """Returns the newest undamaged checkpoint with an optimizer's state, sharded as `abstract`;
        None without any.

        Renames damaged ones. Raises UserError if all are damaged, or it has other arrays or another
        schema version.
        """
        step = self._newest_resumable()
        if step is None:
            return None
        expected = _items(abstract)
        folder = self.folder / str(step)
        with readable(folder, "delete this folder to resume from the previous checkpoint"):
            progress = read_progress(folder)
            restore.check_same_arrays(folder, expected, self.config)
            items = {name: ocp.args.StandardRestore(tree) for name, tree in expected.items()}
            restored = self.manager.restore(step, args=ocp.args.Composite(**items))
        # they lack the optimizer's state, and Orbax saves no step before them
        self._delete_after(step)
        self.retention.best = progress.best_step
        self.retention.rollback = (
            step if progress.skipped == 0 else self._newest_resumable(without_skips=True)
        )
        counts = np.array([step, progress.skipped], np.int32)
        scalars = (
            jax.make_array_from_callback((), abstract.step.sharding, count.__getitem__)
            for count in counts
        )
        trees = restored["parameters"], restored[OPTIMIZER], restored.get("ema_parameters")
        return TrainState(*scalars, *trees), progress

    def delete_diverged(self) -> None:
        """Deletes the checkpoints after the newest one that follows no skipped update."""
        self.manager.wait_until_finished()
        self._delete_after(self._newest_resumable(without_skips=True) or 0)

    def _newest_resumable(self, without_skips: bool = False) -> int | None:
        step = coordination.on_process_zero(retention.newest_resumable, self.workdir, without_skips)
        step = coordination.broadcast(step, self.config.data.wait_seconds)
        self.manager.reload()  # damaged checkpoints may have been renamed
        return step

    def _delete_after(self, newest: int) -> None:
        for step in reversed(self.manager.all_steps()):
            if step > newest:
                logging.info(
                    "Training continues from step %d and deletes the checkpoint of step %d.",
                    newest,
                    step,
                )
                self.manager.delete(step)

    def _write_record(self) -> None:
        """Completes a checkpoint.

        Orbax calls this in process 0 after the last array and before the renaming.
        """
        (temporary,) = self.folder.glob(f"{self.saving.step}.orbax-checkpoint-tmp*")
        checksums.write(temporary, self._contents(self.saving))

    def _replace_progress(self, progress: Progress) -> None:
        """Saves a step again whose validation was interrupted: only the progress has changed since."""
        steps = self.manager.all_steps()
        if jax.process_index() == 0:
            folder = self.folder / str(progress.step)
            checksums.write(folder, self._contents(progress), checksums.read(folder)["files"])
        for step in sorted(set(steps) - self.retention.kept(steps)):
            self.manager.delete(step)

    def _contents(self, progress: Progress) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "progress": dataclasses.asdict(progress),
            "config": flatten(self.config),
        }


def _items(state: TrainState) -> dict[str, Any]:
    """Returns the trees of a state by the names of their items.

    The other two fields are in the progress.
    """
    items = {
        "parameters": state.parameters,
        OPTIMIZER: state.optimizer_state,
        "ema_parameters": state.ema_parameters,
    }
    return {name: tree for name, tree in items.items() if tree is not None}
