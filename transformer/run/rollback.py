"""When losses or gradients stop being finite: back to the last good checkpoint, a few times, then stop."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from absl import logging

from transformer.checkpoints.manager import Checkpoints
from transformer.distributed import coordination as distributed
from transformer.errors import UserError
from transformer.run.preparation import Run
from transformer.training.progress import Progress
from transformer.training.state import TrainState

MODULE_DEPTH = 4  # of the names in a diagnosis: encoder.layers.0.self_attention


class Diverged(Exception):
    """The last `training.max_skipped` updates were skipped."""

    def __init__(self, state: TrainState, progress: Progress, batches: Sequence[dict[str, Any]]):
        super().__init__(f"step {progress.step}")
        self.state, self.progress, self.batches = state, progress, batches


def roll_back(run: Run, checkpoints: Checkpoints, diverged: Diverged) -> tuple[TrainState, Progress]:
    """State and progress to go on from: the newest checkpoint before the trouble, its epoch anew in another order.

    Raises:
      UserError: this has been done `training.max_rollbacks` times already. The log then has the norms by module.
    """
    order = diverged.progress.order + 1
    if order > run.config.training.max_rollbacks:
        stop(run, diverged)
    skipped = int(diverged.state.skipped)
    for leaf in jax.tree.leaves(diverged.state):
        leaf.delete()  # there may be no room for two states
    checkpoints.delete_diverged()
    state, progress = run.newest(checkpoints)
    logging.warning(
        "Step %d: %d updates in a row were skipped, their losses or gradients not being finite. "
        "Going back to step %d, with the data in another order (%d of at most %d times).",
        *(diverged.progress.step, skipped, progress.step, order),
        run.config.training.max_rollbacks,
    )
    distributed.on_process_zero(run.workdir.record_rollback, order, diverged.progress.step, progress.step)
    return state, dataclasses.replace(progress, order=order, batch=0)


def stop(run: Run, diverged: Diverged) -> NoReturn:
    """Ends the run with what is known: step, batch, and norms of parameters and gradients by module."""
    step, position = diverged.progress.step, diverged.progress.position
    for name, parameters, gradients in norms(run, diverged):
        logging.info("%s: norm of parameters %.4g, of gradients %.4g", name, parameters, gradients)
    raise UserError(
        f"step {step}, up to batch {position.batch} of epoch {position.epoch}: training diverged: "
        f"{int(diverged.state.skipped)} updates in a row were not finite, after {diverged.progress.order} roll-backs; "
        "lower optimizer.learning_rate, raise optimizer.warmup_steps or set optimizer.clip_norm, in a new workdir"
    )


def norms(run: Run, diverged: Diverged) -> Iterator[tuple[str, float, float]]:
    """(module, norm of its parameters, norm of their gradients), the latter of the last batch that was skipped."""
    gradients, _ = run.train_step.gradients(diverged.state, run.train_step.place(diverged.batches[-1]), 0)
    of_parameters, of_gradients = by_module(diverged.state.parameters), by_module(gradients)
    for name, value in of_parameters.items():
        yield name, value, of_gradients[name]


def by_module(tree: dict) -> dict[str, float]:
    squares: dict[str, float] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        module = ".".join(str(key.key) for key in path[:-1][:MODULE_DEPTH])
        squares[module] = squares.setdefault(module, 0.0) + float(jnp.sum(jnp.square(leaf)))
    return {module: value**0.5 for module, value in squares.items()}
