"""Checkpoints of runs that are never trained, and a way to read any run's parameters."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

from tests.training.tiny import tiny_config
from transformer.checkpoints.manager import Checkpoints
from transformer.checkpoints.restore import choose_step, read_parameters
from transformer.support.errors import UserError
from transformer.training.progress import Progress
from transformer.training.state import TrainState
from transformer.workdir import Workdir

OPTIMIZER = optax.adam(optax.constant_schedule(0.1))


def read_run(workdir: Path, which: str = "last") -> tuple[dict, int]:
    """Returns the parameters and the step of a run's checkpoint."""
    step = choose_step(workdir, which)
    return read_parameters(Workdir(workdir).checkpoints / str(step)), step


def state_at(step: int) -> TrainState:
    """Returns a state whose parameters are multiples of its step."""
    parameters = {
        "layers": {
            0: {"kernel": np.full((2, 3), step, np.float32)},
            1: {"bias": np.float32([step, -step])},
        }
    }
    return jax.device_put(
        TrainState(np.int32(step), np.int32(0), parameters, OPTIMIZER.init(parameters), None)
    )


def abstract_state() -> TrainState:
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state_at(0)
    )


def save_run(
    folder: Path, keep: int, scores: dict[int, float | None], metric: str = "bleu"
) -> Path:
    """Saves checkpoints at these steps, each after a validation if it has a score."""
    config = tiny_config(
        checkpoint__every=10, checkpoint__keep=keep, checkpoint__best_metric=metric
    )
    progress = Progress()
    with Checkpoints(Workdir(folder), config) as checkpoints:
        for step, score in scores.items():
            progress = dataclasses.replace(progress, step=step)
            progress = (
                progress
                if score is None
                else progress.after_validation({"loss": -score, metric: score}, metric)
            )
            checkpoints.save(state_at(step), progress)
    return folder


def saved_steps(folder: Path) -> list[int]:
    """Returns the names of everything in the folder of checkpoints, which must all be steps."""
    return sorted(int(path.name) for path in Workdir(folder).checkpoints.iterdir())


def steps_with_optimizer(folder: Path) -> list[int]:
    """Returns the steps whose checkpoints still have the optimizer's state."""
    return [
        step
        for step in saved_steps(folder)
        if (Workdir(folder).checkpoints / f"{step}" / "optimizer").exists()
    ]


def refusal(function, *arguments) -> str:
    """Returns the message, of one line, of the UserError that the function raises."""
    with pytest.raises(UserError) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)
