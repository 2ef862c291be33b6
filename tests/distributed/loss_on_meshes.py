"""The loss of `training/loss.py` on several meshes, and by accumulation. As a program, it prints
them as JSON.

    python -m tests.distributed.loss_on_meshes LOSS

tests/test_extending.py runs it with losses that the page adds, in a process with four CPU devices.
"""

import dataclasses
import json
import sys
from collections.abc import Sequence

import jax
import numpy as np

from tests.distributed.on_meshes import LENGTHS, Shape, largest_error, mesh_of
from tests.model.models import flat
from tests.training.tiny import make_batch, setup, tiny_config
from transformer.decoding.ensemble import build_models
from transformer.support.special_tokens import EOS
from transformer.training.columns import Columns
from transformer.training.loss import token_losses

SHAPES = [(1, 1, 1), (2, 1, 2)]
# Of two rows with four tokens, and a teacher's.
LOGITS, TEACHER = np.random.default_rng(0).normal(size=(2, 2, 4, 7)).astype(np.float32)
TARGETS = np.array([[4, 5, 4, EOS], [4, EOS, 5, 4]], np.int32)  # the second row is packed
SMOOTHING = 0.1


def update(loss: str, shape: Shape, batches: Sequence[dict]) -> tuple[float, dict[str, np.ndarray]]:
    """Returns the reported loss and the gradient of one update.

    Distillation also receives the logits of a teacher.
    """
    config = tiny_config(model__dropout=0.0, training__loss=loss)
    here = setup(config, mesh=mesh_of(shape, config))
    other = setup(tiny_config(seed=1, model__d_model=16))
    teachers = build_models(
        [other.initializer.graph], [jax.device_get(other.initializer.create().parameters)]
    )
    if loss == "distillation":
        here.step.loss = dataclasses.replace(here.step.loss, teachers=tuple(teachers))
    start = dict(flat(jax.device_get(here.initializer.create().parameters)))
    state, metrics = here.after(batches)
    # the learning rate is 1
    gradient = {path: start[path] - array for path, array in flat(state.parameters)}
    return float(metrics["sums"].loss), gradient


def main(loss: str) -> None:
    batch = make_batch(LENGTHS, 8, 8, seed=0)
    halves = [
        {name: array[rows] for name, array in batch.items()} for rows in (slice(4), slice(4, 8))
    ]
    updates = {str(shape): update(loss, shape, [batch]) for shape in SHAPES}
    updates["accumulated"] = update(loss, SHAPES[0], halves)
    expected_loss, expected = updates[str(SHAPES[0])]
    errors = {
        name: {"loss": abs(loss / expected_loss - 1), "gradient": largest_error(gradient, expected)}
        for name, (loss, gradient) in updates.items()
    }
    training = tiny_config(training__label_smoothing=SMOOTHING, training__loss=loss).training
    teachers = [TEACHER] if loss == "distillation" else []
    criterion, _ = token_losses(
        LOGITS,
        TARGETS,
        Columns.whole(LOGITS.shape[-1]),
        *teachers,
        training_config=training,
        passes=1,
    )
    print(json.dumps({"errors": errors, "losses": criterion.tolist()}))


if __name__ == "__main__":
    main(sys.argv[1])
