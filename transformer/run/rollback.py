"""Rollbacks of a diverged run to its last good checkpoint.

A run has diverged if its loss or gradients are not finite for several updates in a row.
"""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, NoReturn

import jax
from absl import logging

from transformer.checkpoints.manager import Checkpoints
from transformer.distributed import coordination
from transformer.run.preparation import Run
from transformer.support import files
from transformer.support.errors import UserError
from transformer.training.module_norms import norms_by_module
from transformer.training.progress import Progress
from transformer.training.state import TrainState


class Diverged(Exception):
    """Raised after `training.max_skipped` skipped updates in a row."""

    def __init__(self, state: TrainState, progress: Progress, batches: Sequence[dict[str, Any]]):
        self.state = state
        self.progress = progress
        self.batches = batches


def roll_back(
    run: Run, checkpoints: Checkpoints, diverged: Diverged
) -> tuple[TrainState, Progress]:
    """Returns the last good checkpoint, with its epoch reordered.

    Raises UserError after `training.max_rollbacks`.
    """
    step = diverged.progress.step
    rollbacks = diverged.progress.rollbacks
    limit = run.config.training.max_rollbacks
    # Data in another order helps against a rare bad batch, but not against wrong settings.
    if len(rollbacks) >= limit:
        give_up(run, diverged)
    skipped = int(diverged.state.skipped)
    # The device may not have memory for two states.
    for leaf in jax.tree.leaves(diverged.state):
        leaf.delete()
    checkpoints.delete_diverged()
    state, progress = run.restore_or_initialize(checkpoints)
    rollbacks = [*rollbacks, [step, progress.step]]
    logging.warning(
        "Step %d: %d updates in a row were skipped, because loss or gradient was not finite. "
        "Going back to step %d, with the data in another order (%d of at most %d times).",
        step,
        skipped,
        progress.step,
        len(rollbacks),
        limit,
    )
    # All events are written again, since a run that was killed may repeat its rollback.
    text = ""
    for number, (from_step, to_step) in enumerate(rollbacks, start=1):
        event = {"event": "rollback", "number": number, "step": from_step, "to_step": to_step}
        text += f"{json.dumps(event)}\n"
    coordination.on_process_zero(files.write_text, run.workdir.events, text)
    # Another number of rollbacks shuffles the epoch, which begins again, in another order.
    return state, dataclasses.replace(progress, rollbacks=rollbacks, batch=0)


def give_up(run: Run, diverged: Diverged) -> NoReturn:
    """Logs the norms of parameters and gradients by module, and raises UserError.

    The gradients are computed on the last batch.
    """
    step = diverged.progress.step
    data_position = diverged.progress.data_position
    train_step = run.train_step
    batch = train_step.place(diverged.batches[-1])
    gradients, _ = train_step.gradients(diverged.state, batch, 0, train_step.seed)
    gradient_norms = norms_by_module(gradients)
    for name, norm in norms_by_module(diverged.state.parameters).items():
        logging.info(
            "%s: norm of parameters %.4g, of gradients %.4g", name, norm, gradient_norms[name]
        )
    raise UserError(
        f"step {step}, up to batch {data_position.batch} of epoch {data_position.epoch}: "
        f"training diverged: {int(diverged.state.skipped)} updates in a row were not finite; "
        f"rollbacks: {data_position.num_rollbacks}; lower optimizer.learning_rate, "
        "raise optimizer.warmup_steps or set optimizer.clip_norm, in a new workdir"
    )
