"""Gradients and updates on devices, against gradients and updates on the host's CPU.

On the host, the gradients are computed operation by operation, so that no compiler changes them.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

import jax
import numpy as np
import optax

from configs import base
from scripts.benchmarking.ours import SIZE_KEYS, make_batch, make_step
from scripts.benchmarking.tasks import Size, training_task
from scripts.verification.outcomes import Outcome
from scripts.verification.processes import HOST, results_of
from transformer.config.types import Config
from transformer.distributed.mesh import tree_shardings
from transformer.training.state import TrainState

# The shortest rows and narrowest heads of cuDNN's attention.
SIZE = Size(2, 128, 128, 4, 200, pairs=8, length=64)
# For the loss and its gradients.
BARS = {"float32": 1e-4, "bfloat16": 0.1}
# For losses after updates, which amplify rounding.
LOSS_BARS = {"float32": 1e-3, "bfloat16": 0.1}
UPDATES = 50


class Setup:
    """A small model with dropout, its step on a mesh of devices, and a batch with `rows` rows."""

    def __init__(self, devices: Sequence[jax.Device], dtype: str, rows: int, **mesh: int) -> None:
        config = make_config(dtype, **mesh)
        config.batch.row_multiple = rows
        sizes = (SIZE.vocab_size, SIZE.vocab_size)
        self.step, self.initializer = make_step(config, devices, sizes)
        task = training_task(SIZE._replace(pairs=rows))
        self.batch = self.step.place(make_batch(task))

    def state(self, parameters: dict) -> TrainState:
        """Returns the initial state with these parameters."""
        placed = jax.device_put(parameters, tree_shardings(self.step.mesh, parameters))
        return self.initializer.start_from(placed)

    def gradients(self, parameters: dict) -> tuple[dict, float]:
        """Returns the gradients of the summed loss, and the loss."""
        state = self.state(parameters)
        gradients, sums = self.step.gradients(state, self.batch, 0, self.step.seed)
        return jax.device_get(gradients), float(sums.loss)

    def losses(self, parameters: dict) -> list[float]:
        """Returns the losses of `UPDATES` updates with the same batch."""
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
    """Yields parameters, their gradients with the loss, and the losses of updates.

    This runs in the process on the host's CPU.
    """
    host = Setup(jax.devices()[:1], "float32", rows)
    parameters = jax.device_get(host.initializer.create().parameters)

    # Without jit JAX computes one operation at a time.
    with jax.disable_jit():
        exact = host.gradients(parameters)
    yield parameters, exact, host.losses(parameters)


def check_all() -> Iterator[Outcome]:
    """Yields the outcomes of each device, and of every mesh of all devices."""
    devices = jax.devices()

    # All meshes divide the rows of the same batch.
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

    exact_losses = np.array(losses)
    for dtype, bar in LOSS_BARS.items():
        device_losses = np.array(Setup(devices[:1], dtype, rows).losses(parameters))

        # The maximum is NaN if one error is NaN.
        error = float(np.max(np.abs(device_losses - exact_losses) / exact_losses))
        yield Outcome(f"losses of {UPDATES} updates on device 0, {dtype}", error, bar)


def compare(
    name: str, results: tuple[dict, float], exact: tuple[dict, float], bar: float
) -> Iterator[Outcome]:
    """Yields the relative error of the loss, and the largest relative error of a gradient.

    The error of a gradient is the Euclidean norm of its difference. The results are gradients and
    loss.
    """
    gradients, loss = results
    exact_gradients, exact_loss = exact
    yield Outcome(f"loss, {name}", abs(loss - exact_loss) / exact_loss, bar)

    # Softmax cancels the biases of keys: their gradients are 0 except for rounding.
    floor = 1e-3 * float(optax.tree.norm(exact_gradients))

    def relative_error(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), floor))

    errors = jax.tree.map(relative_error, gradients, exact_gradients)
    worst_error = float(np.max(jax.tree.leaves(errors)))  # NaN if one error is NaN
    yield Outcome(f"gradients, {name}", worst_error, bar)


def meshes(count: int) -> Iterator[dict[str, int]]:
    """Yields the shapes of all meshes of several devices.

    The size of the tensor axis divides the number of heads.
    """
    for tensor, fsdp, data in itertools.product(range(1, count + 1), repeat=3):
        if tensor * fsdp * data == count > 1 and SIZE.num_heads % tensor == 0:
            yield {"data": data, "fsdp": fsdp, "tensor": tensor}
