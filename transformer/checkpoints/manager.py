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
        self.saving: Progress  # of the last save
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self.retention,
            cleanup_tmp_directories=True,  # left by a save that was killed
            async_options=ocp.AsyncOptions(post_finalization_callback=self._write_record),
        )
        self.manager = ocp.CheckpointManager(self.folder, options=options)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # After a collective failure, Orbax would wait for the process that died.
        if coordination.is_collective_failure(error):
            return
        self.manager.close()
        # After an error, the best step may not be known yet.
        if error is None:
            self._remove_optimizer_states()

    def save(self, state: TrainState, progress: Progress) -> None:
        """Starts to save a checkpoint of `progress.step`."""
        # Only one save runs at a time, and the folder must still be the one of this run.
        self.manager.wait_until_finished()
        coordination.on_process_zero(self.workdir.check_in_place)
        self.retention.best = progress.best_step
        self._remove_optimizer_states()
        # A validation that was interrupted has been repeated at the step of the checkpoint.
        if progress.step in self.manager.all_steps():
            self._replace_progress(progress)
            return
        if progress.skipped == 0:
            self.retention.rollback = progress.step
        self.saving = progress
        trees = _items(state, state.averaged_parameters)
        # Orbax copies the arrays to the host before it returns, and writes them in the background.
        items = {name: ocp.args.StandardSave(tree) for name, tree in trees.items()}
        self.manager.save(progress.step, args=ocp.args.Composite(**items))

    def restore(self, abstract: TrainState) -> tuple[TrainState, Progress] | None:
        """Returns the newest undamaged checkpoint with an optimizer's state; None without any.

        The state is sharded as `abstract`. Damaged checkpoints are renamed. Raises UserError if all
        are damaged, or if it has other arrays or another schema version.
        """
        step = self._newest_resumable()
        if step is None:
            return None
        # The average of an optimizer is only for decoding: its state has all that an update needs.
        expected = _items(abstract, abstract.ema_parameters)
        folder = self.folder / str(step)
        with readable(folder, "delete this folder to resume from the previous checkpoint"):
            progress = read_progress(folder)
            restore.check_same_arrays(folder, expected, self.config)
            items = {name: ocp.args.StandardRestore(tree) for name, tree in expected.items()}
            restored = self.manager.restore(step, args=ocp.args.Composite(**items))

        # Later checkpoints lack the optimizer's state, and Orbax saves no step before them.
        self._delete_after(step)
        self.retention.best = progress.best_step
        if progress.skipped == 0:
            self.retention.rollback = step
        else:
            self.retention.rollback = self._newest_resumable(without_skips=True)

        # The record has the two scalars of the state.
        step_count, skipped = (
            jax.make_array_from_callback((), abstract.step.sharding, count.__getitem__)
            for count in np.array([step, progress.skipped], np.int32)
        )
        ema_parameters = restored.get("ema_parameters")
        state = TrainState(
            step_count, skipped, restored["parameters"], restored[OPTIMIZER], ema_parameters
        )
        return state, progress

    def delete_diverged(self) -> None:
        """Deletes the checkpoints after the newest one that follows no skipped update."""
        self.manager.wait_until_finished()
        self._delete_after(self._newest_resumable(without_skips=True) or 0)

    def _remove_optimizer_states(self) -> None:
        coordination.on_process_zero(
            retention.remove_optimizer_states, self.folder, self.retention.best
        )

    def _newest_resumable(self, without_skips: bool = False) -> int | None:
        # Only process 0 looks at the files; the other processes receive its answer.
        step = coordination.on_process_zero(retention.newest_resumable, self.workdir, without_skips)
        step = coordination.broadcast(step, self.config.data.wait_seconds)
        # Damaged checkpoints may have been renamed.
        self.manager.reload()
        return step

    def _delete_after(self, newest: int) -> None:
        # The newest first, so that a kill leaves no gap.
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

        Orbax calls this in process 0, after it has written all arrays and before it renames the
        folder.
        """
        # Orbax writes to a folder with another name until the checkpoint is complete.
        (temporary,) = self.folder.glob(f"{self.saving.step}.orbax-checkpoint-tmp*")
        checksums.write(temporary, self._contents(self.saving))

    def _replace_progress(self, progress: Progress) -> None:
        """Saves a step again after its validation, which had been interrupted.

        Only the progress has changed.
        """
        steps = self.manager.all_steps()
        if jax.process_index() == 0:
            folder = self.folder / str(progress.step)
            checksums.write(folder, self._contents(progress), checksums.read(folder)["files"])
        # Orbax would do this after saving arrays.
        for step in sorted(set(steps) - self.retention.steps_to_keep(steps)):
            self.manager.delete(step)

    def _contents(self, progress: Progress) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "progress": dataclasses.asdict(progress),
            "config": flatten(self.config),
        }


def _items(state: TrainState, averaged_parameters: Any) -> dict[str, Any]:
    """Returns the trees of a state, by the names of the items that Orbax saves."""
    items = {
        "parameters": state.parameters,
        OPTIMIZER: state.optimizer_state,
        "ema_parameters": averaged_parameters,
    }
    return {name: tree for name, tree in items.items() if tree is not None}
