"""Learning-rate schedules (section 5.3): the rate of each update."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from configs import base
from scripts.charts import theme
from transformer.support.errors import UserError
from transformer.training.optimizer import make_schedule

CURVES = ((512, 4000), (512, 8000), (256, 4000))  # as in the Annotated Transformer
POINTS = 400
HEIGHT = 150
LABELS = {1: 64, 2: 200}  # width of the axis and, beside the panel, the legend


def draw(curves: Sequence[tuple[int, int]] = CURVES, steps: int = 20_000, columns: int = 1) -> Any:
    """Returns the paper's schedule (equation 3) for pairs of d_model and warm-up steps.

    Raises UserError if a number is not positive.
    """
    schedules = {}
    for d_model, warmup in curves:
        if min(d_model, warmup) < 1:
            raise UserError(f"curves={d_model}:{warmup}: d_model and warm-up must be at least 1")
        config = base.get_config().optimizer
        config.update(schedule="inverse_sqrt", learning_rate=1.0, warmup_steps=warmup)
        name = f"d_model {d_model}, warm-up {warmup:,}"
        schedules[name] = make_schedule(config, d_model, steps)
    return draw_schedules(schedules, steps, columns)


def draw_schedules(schedules: Mapping[str, Callable[[Any], Any]], steps: int, columns: int) -> Any:
    """Returns schedules as curves over updates 1 to `steps`.

    A schedule is a function from the number of completed updates to a learning rate.
    """
    if steps < 2:
        raise UserError(f"steps={steps}: must be at least 2")
    curves = {name: rates(schedule, steps) for name, schedule in schedules.items()}
    width = theme.COLUMN_WIDTHS[columns] - LABELS[columns]
    chart = theme.lines(curves, "update", "learning rate", None, width, HEIGHT)
    return theme.themed(chart) if columns == 2 else theme.themed(chart, orient="bottom", columns=1)


def rates(schedule: Callable[[Any], Any], steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns at most 401 updates, counted from 1, and their learning rates.

    400 updates are evenly spaced. The update with the highest rate is always included.
    """
    # A constant schedule returns one number for all updates.
    rate = np.broadcast_to(np.asarray(schedule(jnp.arange(steps))), (steps,))
    evenly_spaced = np.linspace(0, steps - 1, POINTS).round().astype(int)
    completed = np.unique([*evenly_spaced, rate.argmax()])
    return completed + 1, rate[completed]
