"""A training step of this project, by the functions that `transformer.train` calls."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from configs import base
from scripts.benchmarking.worker import Prepared
from transformer.decoding.batches import pad
from transformer.distributed.mesh import make_mesh
from transformer.training.optimizer import make_optimizer, make_schedule
from transformer.training.state import Initializer, TrainState
from transformer.training.step import TrainStep

MODEL_KEYS = ("num_layers", "d_model", "d_ff", "num_heads", "dropout", "dtype")


def prepare(task: dict[str, Any]) -> Prepared:
    step, state = make_step(task)
    batch = step.place(make_batch(task))

    def repeat() -> None:
        nonlocal state
        state, metrics = step(state, [batch])
        jax.block_until_ready((state, metrics))

    return Prepared(repeat, int((batch["target_output"] != task["pad"]).sum()), f"JAX {jax.__version__}")


def make_step(task: dict[str, Any]) -> tuple[TrainStep, TrainState]:
    """Returns the step and its initial state."""
    config = base.get_config()
    config.model.update({key: task[key] for key in MODEL_KEYS})
    config.training.label_smoothing = task["label_smoothing"]
    mesh, sizes = make_mesh(config, jax.devices()), (task["vocab_size"], task["vocab_size"])
    schedule = make_schedule(config.optimizer, config.model.d_model, config.training.steps)
    optimizer = make_optimizer(config.optimizer, schedule)
    initializer = Initializer(config, optimizer, mesh, sizes)
    return TrainStep(config, initializer.graph, optimizer, schedule, mesh), initializer()


def make_batch(task: dict[str, Any]) -> dict[str, Int[np.ndarray, "B _"]]:
    """Returns the arrays of a training batch, as `collation.assemble` does for sentences of a corpus."""
    inputs = [[task["bos"], *row[:-1]] for row in task["target"]]
    sides = {"source": task["source"], "target_input": inputs, "target_output": task["target"]}
    return {name: padded(rows) for name, rows in sides.items()}


def padded(rows: Sequence[Sequence[int]]) -> Int[np.ndarray, "B L"]:
    return pad(rows, len(rows), max(map(len, rows)))
