"""The checkpoints of a run: saved by Orbax in the background, retained, and restored."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging

from transformer.checkpoints import checksums
from transformer.checkpoints.restore import SCHEMA_VERSION, check_same_arrays, read_progress, readable, steps_in
from transformer.config.keys import flatten
from transformer.config_types import Config
from transformer.distributed import coordination
from transformer.errors import UNREADABLE, UserError
from transformer.training.progress import Progress
from transformer.training.state import TrainState
from transformer.workdir import Workdir

OPTIMIZER = "optimizer"  # the item of a checkpoint that only training reads
MAX_OPTIMIZER_STATES = 4  # in the best checkpoint, the newest two and the one that is being written


def steps_to_keep(steps: Sequence[int], settings: Config, best: int | None) -> set[int]:
    """Returns the checkpoints to keep: those that training resumes from, and those that `--average` takes.

    Args:
      steps: the steps of the existing checkpoints, in ascending order.
      settings: `config.checkpoint`.
      best: the step of the best checkpoint; None before the first validation.
    """
    # A checkpoint of an interruption is no multiple of `every`. It must not displace one that `--average` takes.
    regular = [step for step in steps if step % settings.every == 0]
    up_to_best = [step for step in steps if best and step <= best and (step == best or step % settings.every == 0)]
    permanent = [step for step in steps if settings.keep_every and step % settings.keep_every == 0]
    return {steps[-1], *regular[-settings.keep :], *up_to_best[-settings.keep :], *permanent}


def max_checkpoints(settings: Config, last_step: int, eval_every: int) -> int:
    """Returns the largest number of checkpoints that a run can end with; it depends on which step is the best."""
    steps = [*range(settings.every, last_step, settings.every), last_step]
    kept = steps_to_keep(steps, settings, None)
    others = len(steps) - len(kept) + (eval_every % settings.every != 0)  # the best may be no multiple of `every`
    return len(kept) + min(settings.keep, others)


class _Retention:
    """Orbax's preservation policy for a run. Orbax's own `BestN` loses the scores on resuming and knows no neighbours.

    Attributes:
      best: the step of the best validation.
      rollback: the newest saved step that follows no skipped update.
    """

    def __init__(self, settings: Config) -> None:
        self.settings, self.best, self.rollback = settings, None, None

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        kept = self.kept([checkpoint.step for checkpoint in checkpoints])
        return [checkpoint.step in kept for checkpoint in checkpoints]

    def kept(self, steps: Sequence[int]) -> set[int | None]:
        return {self.rollback, *steps_to_keep(steps, self.settings, self.best)}


class Checkpoints:
    """Saves and restores the checkpoints of a run, in a `with` statement whose end waits for the last save.

    Saving runs in the background. Orbax writes a checkpoint to a temporary folder and renames it once it is complete
    and has its checksums.
    """

    def __init__(self, workdir: Workdir, config: Config):
        self.workdir, self.folder = workdir, workdir.checkpoints
        self.config = config
        self.retention = _Retention(config.checkpoint)
        self.saving: Progress | None = None
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self.retention,
            async_options=ocp.AsyncOptions(post_finalization_callback=self._write_record),
        )
        self.manager = ocp.CheckpointManager(self.folder, options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if coordination.is_collective_failure(error):
            return  # Orbax would wait for the process that died
        self.manager.wait_until_finished()
        self.manager.close()
        self._remove_optimizer_states()

    def save(self, state: TrainState, progress: Progress) -> None:
        """Starts to save a checkpoint of `progress.step`.

        If the step is saved already, its validation was interrupted: only the progress has changed since.
        """
        self.manager.wait_until_finished()
        coordination.on_process_zero(self.workdir.check_in_place)
        self.retention.best = progress.best_step
        self._remove_optimizer_states()
        steps = self.manager.all_steps()
        if progress.step in steps:
            coordination.on_process_zero(self._replace_progress, progress)
            for step in sorted(set(steps) - self.retention.kept(steps)):
                self.manager.delete(step)
            return
        if progress.skipped == 0:
            self.retention.rollback = progress.step
        self.saving = progress
        saved = {name: ocp.args.StandardSave(tree) for name, tree in _items(state).items()}
        self.manager.save(progress.step, args=ocp.args.Composite(**saved))

    def restore(self, abstract: TrainState) -> tuple[TrainState, Progress] | None:
        """Returns the newest undamaged checkpoint with an optimizer's state, sharded as `abstract` says.

        None if there is no checkpoint yet. Renames damaged checkpoints, with a warning. Raises UserError if none is
        left, or if the one to restore has other arrays or another schema version.
        """
        step = self._find(self._newest_undamaged)
        if step is None:
            return None
        state, progress = self._read(step, abstract)
        self._delete_after(step)  # they lack the optimizer's state, and Orbax saves no step before them
        self.retention.best = progress.best_step
        self.retention.rollback = step if progress.skipped == 0 else self._find(self._newest_without_skips)
        return state, progress

    def delete_diverged(self) -> None:
        """Deletes the checkpoints after the newest one that follows no skipped update."""
        self.manager.wait_until_finished()
        self._delete_after(self._find(self._newest_without_skips) or 0)

    def _delete_after(self, newest: int) -> None:
        for step in reversed(self.manager.all_steps()):
            if step > newest:
                logging.info("Training continues from step %d and deletes the checkpoint of step %d.", newest, step)
                self.manager.delete(step)

    def _remove_optimizer_states(self) -> None:
        """Deletes the optimizer's state where neither a start nor a rollback needs it; averages take parameters."""
        if jax.process_index() != 0:
            return
        steps, good = steps_in(self.folder), []
        kept = {self.retention.best, *steps[-2:]}  # the second, in case the newest one is damaged
        for step in reversed(steps):
            # Leaves damaged checkpoints, which a start renames that needs them.
            with contextlib.suppress(*UNREADABLE):
                if len(good) < 2 and read_progress(self.folder / str(step)).skipped == 0:
                    good.append(step)
                elif step not in kept:
                    checksums.remove_item(self.folder / str(step), OPTIMIZER)

    def _find(self, find: Callable[[], int | None]) -> int | None:
        """Calls the function in process 0, which may rename checkpoints, and returns its result in all processes."""
        step = coordination.broadcast(coordination.on_process_zero(find), self.config.data.wait_seconds)
        self.manager.reload()
        return step

    def _newest_without_skips(self) -> int | None:
        for step in self._undamaged():
            if read_progress(self.folder / str(step)).skipped == 0:
                return step
        return None

    def _newest_undamaged(self) -> int | None:
        for step in self._undamaged():
            return step
        if steps_in(self.folder):
            raise UserError(
                f"{self.folder}: no undamaged checkpoint has the optimizer's state; start another --workdir from these "
                f"parameters with --config.training.init_from={self.workdir.path}, or delete this folder to start over"
            )
        if damaged := sorted(self.folder.glob("damaged-*")):
            raise UserError(f"{self.folder}: all checkpoints are damaged; to start over, delete {damaged[0].name} etc.")
        return None

    def _undamaged(self) -> Iterator[int]:
        """Yields the steps of undamaged checkpoints with an optimizer's state, newest first.

        Renames damaged ones, with a warning.
        """
        for step in reversed(steps_in(self.folder)):
            folder = self.folder / str(step)
            damage = checksums.damage(folder)
            if damage is None:
                if checksums.has_item(folder, OPTIMIZER):
                    yield step
                continue
            number = sum(1 for _ in self.folder.glob(f"damaged-{step}-*"))
            renamed = folder.rename(self.folder / f"damaged-{step}-{number}")
            logging.warning("%s: %s; renamed to %s, using the previous checkpoint.", folder, damage, renamed.name)

    def _read(self, step: int, abstract: TrainState) -> tuple[TrainState, Progress]:
        expected, folder = _items(abstract), self.folder / str(step)
        with readable(folder, "delete this folder to resume from the previous checkpoint"):
            progress = read_progress(folder)
            check_same_arrays(folder, expected, self.config)
            arguments = {name: ocp.args.StandardRestore(tree) for name, tree in expected.items()}
            found = self.manager.restore(step, args=ocp.args.Composite(**arguments))
        counts = (_scalar(value, abstract.step.sharding) for value in (step, progress.skipped))
        return TrainState(*counts, found["parameters"], found[OPTIMIZER], found.get("ema_parameters")), progress

    def _write_record(self) -> None:
        """Completes a checkpoint. Orbax calls this in process 0 after the last array and before the renaming."""
        (temporary,) = self.folder.glob(f"{self.saving.step}.orbax-checkpoint-tmp*")
        checksums.write(temporary, self._contents(self.saving))

    def _replace_progress(self, progress: Progress) -> None:
        folder = self.folder / str(progress.step)
        checksums.write(folder, self._contents(progress), checksums.read(folder)["files"])

    def _contents(self, progress: Progress) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "progress": dataclasses.asdict(progress),
            "config": flatten(self.config),
        }


def _items(state: TrainState) -> dict[str, Any]:
    """Returns the trees of a state by the names of their items. The other two fields are in the progress."""
    items = {"parameters": state.parameters, OPTIMIZER: state.optimizer_state, "ema_parameters": state.ema_parameters}
    return {name: tree for name, tree in items.items() if tree is not None}


def _scalar(value: int, sharding: jax.sharding.Sharding) -> jax.Array:
    return jax.make_array_from_callback((), sharding, lambda _: np.int32(value))
