"""Gradients and updates on devices, against the same computed operation by operation, or on the
host's CPU.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

import jax
import numpy as np
import optax

from configs import base
from scripts.benchmarking.ours import SIZE_KEYS, make_batch, step_of
from scripts.benchmarking.tasks import Size, training_task
from scripts.verification.outcomes import Outcome
from scripts.verification.processes import HOST, results_of
from transformer.config.types import Config
from transformer.distributed.mesh import tree_shardings
from transformer.training.state import TrainState

# the shortest rows and narrowest heads of cuDNN's attention
SIZE = Size(2, 128, 128, 4, 200, pairs=8, length=64)
BARS = {"float32": 1e-4, "bfloat16": 0.1}  # of the loss and its gradients
LOSS_BARS = {"float32": 1e-3, "bfloat16": 0.1}  # after updates, which amplify rounding
UPDATES = 50


class Setup:
    """A small model with dropout, its step on a mesh of these devices, and a batch with so many
    rows.
    """

    def __init__(self, devices: Sequence[jax.Device], dtype: str, rows: int, **mesh: int) -> None:
        config = make_config(dtype, **mesh)
        config.batch.row_multiple = rows
        self.step, self.initializer = step_of(config, devices, (SIZE.vocab_size, SIZE.vocab_size))
        self.batch = self.step.place(make_batch(training_task(SIZE._replace(pairs=rows))))

    def state(self, parameters: dict) -> TrainState:
        """Returns the state that begins with these parameters."""
        placed = jax.device_put(parameters, tree_shardings(self.step.mesh, parameters))
        return self.initializer.start_from(placed)

    def gradients(self, parameters: dict) -> tuple[dict, float]:
        """Returns the gradients of the summed loss, and the loss."""
        gradients, sums = self.step.gradients(self.state(parameters), self.batch, 0, self.step.seed)
        return jax.device_get(gradients), float(sums.loss)

    def losses(self, parameters: dict) -> list[float]:
        """Returns the losses of `UPDATES` updates from the same batch."""
        state = self.state(parameters)
        losses = []
        for _ in range(UPDATES):
            state, metrics = self.step(state, [self.batch])
            losses.append(float(metrics["sums"].loss))
        return losses


def make_config(dtype: str, **mesh: int) -> Config:
    config = base.get_config()
    config.model.update({key: getattr(SIZE, key) for key in SIZE_KEYS})
    config.model.update({"dtype": dtype, "dropout": 0.1})
    config.optimizer.update({"schedule": "constant", "learning_rate": 1e-3, "warmup_steps": 0})
    config.mesh.update(mesh)
    return config


def reference(rows: int) -> Iterator[tuple[dict, tuple[dict, float], list[float]]]:
    """Yields parameters, their gradients and loss, and the losses of updates. To be called on the
    host.

    The gradients are computed operation by operation, which leaves nothing to a compiler.
    """
    host = Setup(jax.devices()[:1], "float32", rows)
    parameters = jax.device_get(host.initializer.create().parameters)
    with jax.disable_jit():
        exact = host.gradients(parameters)
    yield parameters, exact, host.losses(parameters)


def check_all() -> Iterator[Outcome]:
    """Yields the outcomes for each device by itself, and for every mesh of all devices."""
    devices = jax.devices()
    rows = math.lcm(SIZE.pairs, len(devices))
    ((parameters, exact, losses),) = results_of(f"{__name__}:reference", rows, environment=HOST)
    for number, device in enumerate(devices):
        for dtype, bar in BARS.items():
            gradients = Setup([device], dtype, rows).gradients(parameters)
            yield from compare(f"device {number}, {dtype}", gradients, exact, bar)
    for shape in meshes(len(devices)):
        gradients = Setup(devices, "float32", rows, **shape).gradients(parameters)
        name = " x ".join(f"{axis} {size}" for axis, size in shape.items())
        yield from compare(f"mesh {name}, float32", gradients, exact, BARS["float32"])
    for dtype, bar in LOSS_BARS.items():
        pairs = zip(Setup(devices[:1], dtype, rows).losses(parameters), losses, strict=True)
        # NaN if one is
        error = float(np.max([abs(loss - expected) / expected for loss, expected in pairs]))
        yield Outcome(f"losses of {UPDATES} updates on device 0, {dtype}", error, bar)


def compare(
    name: str, found: tuple[dict, float], exact: tuple[dict, float], bar: float
) -> Iterator[Outcome]:
    """Yields the error of the loss, and the largest error of a parameter's gradient, in Euclidean
    norms.
    """
    (gradients, loss), (exact_gradients, exact_loss) = found, exact
    yield Outcome(f"loss, {name}", abs(loss - exact_loss) / exact_loss, bar)
    # The gradients of the biases of keys are 0 but for rounding, since softmax cancels them.
    floor = 1e-3 * float(optax.tree.norm(exact_gradients))
    errors = jax.tree.map(
        lambda a, b: float(np.linalg.norm(a - b) / max(np.linalg.norm(b), floor)),
        gradients,
        exact_gradients,
    )
    # NaN if one is
    yield Outcome(f"gradients, {name}", float(np.max(jax.tree.leaves(errors))), bar)


def meshes(count: int) -> Iterator[dict[str, int]]:
    """Yields the shapes of all meshes of several devices in which the tensor axis divides the
    heads.
    """
    for tensor, fsdp, data in itertools.product(range(1, count + 1), repeat=3):
        if tensor * fsdp * data == count > 1 and SIZE.num_heads % tensor == 0:
            yield {"data": data, "fsdp": fsdp, "tensor": tensor}
