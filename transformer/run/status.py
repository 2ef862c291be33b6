"""The present activity of a training run, its curves, and the time that it still needs."""

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jax.profiler import TraceAnnotation
from rich import progress
from rich.console import RenderableType
from rich.text import Text

from transformer.decoding.bleu import METRICS, metrics_in
from transformer.progress_bar import make_bar
from transformer.training.metrics import Record
from transformer.training.samples import Sample

BLOCKS = "▁▂▃▄▅▆▇█"
CURVE_WIDTH = 48  # characters


class TrainingStatus:
    """Activity, loss, speed and time left of a run, shown as a panel if standard error is a terminal.

    Below a progress bar, the panel has the curves of loss and BLEU since this start, and a sample of the last
    validation.

    The time left follows from the mean duration of the steps since this start, with validations and checkpoints but
    without compilation. The bar and the log lines show the same estimate.
    """

    def __init__(self, step: int, steps: int) -> None:
        self.first_step, self.step, self.steps = step, step, steps
        self.started, self.compile_seconds = time.perf_counter(), 0.0
        self.bar = make_bar(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=14),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[scores]}{task.fields[left]}"),
            kind=Panel,
        )
        self.curves: dict[str, list[float]] = defaultdict(list)
        self.task = self.bar.add_task("training", total=steps, completed=step, scores="", left="")

    def __enter__(self) -> "TrainingStatus":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def advance(self) -> None:
        """Counts a step."""
        self.step += 1
        self.bar.update(self.task, completed=self.step, left=f"{self.time_left} left")

    def show_scores(self, loss: float, tokens_per_second: float) -> None:
        self.bar.update(self.task, scores=f"loss {loss:.3f}  {tokens_per_second / 1000:.1f}k tok/s  ")
        self._extend("loss", loss)

    def show_validation(self, values: Record, samples: Sequence[Sample]) -> None:
        """Shows the curves of the scores that `values` has, and the last sample with its translation."""
        for name in metrics_in("log"):
            if name in values:
                self._extend(METRICS[name].label, values[name])
        if samples:
            self._show_line("source", samples[-1].source)
            self._show_line("translation", samples[-1].translation)

    def _extend(self, name: str, value: float) -> None:
        if not math.isfinite(value):
            return
        self.curves[name].append(value)
        self._show_line(name, f"{sparkline(self.curves[name], CURVE_WIDTH)} {value:.2f}")

    def _show_line(self, name: str, text: str) -> None:
        # A new dictionary, since the thread that draws the panel may be reading the old one.
        self.bar.lines = self.bar.lines | {name: "".join(c if c.isprintable() else " " for c in text)}

    def show_compiled(self, finished: int, total: int) -> None:
        """Shows how many programs have been compiled."""
        self.bar.update(self.task, description=f"compiling {finished}/{total}")

    @contextlib.contextmanager
    def doing(self, activity: str) -> Iterator[None]:
        """Shows an activity other than training during the block. The time of "compiling" is not part of a step."""
        self.bar.update(self.task, description=activity)
        started = time.perf_counter()
        with TraceAnnotation(activity):
            yield
        if activity == "compiling":
            self.compile_seconds += time.perf_counter() - started
        self.bar.update(self.task, description="training")

    @property
    def time_left(self) -> str:
        """The estimated time to the last step, such as "3h07m". At least one step must have been counted."""
        seconds = time.perf_counter() - self.started - self.compile_seconds
        return format_duration(seconds / (self.step - self.first_step) * (self.steps - self.step))


class Panel(progress.Progress):
    """A progress bar with lines below it, each with a name."""

    def __init__(self, *columns: progress.ProgressColumn, **options: Any):
        self.lines: dict[str, str] = {}
        super().__init__(*columns, **options)

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for name, line in self.lines.items():
            yield Text(f"{name:12}{line}", no_wrap=True, overflow="ellipsis")


def sparkline(values: Sequence[float], width: int) -> str:
    """Returns a curve of at most `width` block characters, each for the mean of about equally many values."""
    groups = np.array_split(np.asarray(values, float), min(width, len(values)))
    means = np.array([group.mean() for group in groups])
    low, high = means.min(), means.max()
    heights = np.zeros(len(means)) if high == low else (means - low) / (high - low)
    return "".join(BLOCKS[round(height * (len(BLOCKS) - 1))] for height in heights)


def format_duration(seconds: float) -> str:
    """Returns a duration in its two largest units: "2d04h", "3h07m" or "5m20s"."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02}h"
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{seconds:02}s"
