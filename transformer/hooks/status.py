"""A training run in the log and on the terminal: losses, scores, the activity and the time left."""

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from absl import logging
from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as ProgressBar
from rich.text import Text

from transformer.config.types import Config
from transformer.decoding.bleu import METRICS, describe_scores, metrics_in
from transformer.hooks.hook import Hook
from transformer.support.progress_bar import make_bar
from transformer.training.progress import Progress, Record
from transformer.training.validation import Sample

BLOCKS = "▁▂▃▄▅▆▇█"
CURVE_WIDTH = 48  # characters


class Status(Hook):
    """Logs losses and scores.

    A terminal also shows a progress bar, curves since this start, and a translation.
    """

    def __init__(self, config: Config) -> None:
        self.steps = config.training.steps
        self.bar = make_bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=14),
            MofNCompleteColumn(),
            TextColumn("{task.fields[scores]}{task.fields[left]}"),
            kind=Panel,
        )
        self.curves: dict[str, list[float]] = defaultdict(list)
        self.task = self.bar.add_task("training", total=self.steps, scores="", left="")

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def on_start(self, progress: Progress) -> None:
        self.step = self.first_step = progress.step
        self.bar.update(self.task, completed=self.step, left="")

    def before_step(self, step: int) -> None:
        if self.step == self.first_step:  # after the compilation, which has a bar too
            self.started = time.perf_counter()
            self.bar.start()

    def after_step(self, *_: object) -> None:
        self.step += 1
        self.bar.update(self.task, completed=self.step, left=f"{self.time_left} left")

    def on_log(self, progress: Progress, values: Record) -> None:
        loss = f"loss {values['loss']:.3f}"
        speed = f"{values['tokens_per_second'] / 1000:.1f}k tok/s"
        self.bar.update(self.task, scores=f"{loss}  {speed}  ")
        self._extend("loss", values["loss"])
        waiting = values["waiting_fraction"]
        skipped = values["skipped"]
        notes = f"  ({waiting:.0%} waiting for data)" if waiting >= 0.05 else ""
        notes += f"  ({skipped} updates skipped: not finite)" if skipped else ""
        logging.info(
            "step %d  %s  ppl %.4g  lr %.1e  %s  %s left%s",
            progress.step,
            loss,
            values["perplexity"],
            values["learning_rate"],
            speed,
            self.time_left,
            notes,
        )

    def on_validation(self, progress: Progress, values: Record, samples: Sequence[Sample]) -> None:
        for name in metrics_in("log"):
            if name in values:
                self._extend(METRICS[name].label, values[name])
        if samples:
            self._show_line("source", samples[-1].source)
            self._show_line("translation", samples[-1].translation)
        scores = "".join(f"  {text}" for text in describe_scores(values, metrics_in("log")))
        others = [
            key.partition("/")
            for key in values
            if key.partition("/")[0] in metrics_in("log") and "/" in key
        ]
        scores += "".join(
            f"  {name} {values[f'{metric}/{name}']:.2f}" for metric, _, name in others
        )
        logging.info(
            "step %d  validation  loss %.3f  ppl %.4g%s%s",
            progress.step,
            values["loss"],
            values["perplexity"],
            scores,
            "  (best)" if progress.is_best else "",
        )

    @contextlib.contextmanager
    def during(self, activity: str) -> Iterator[None]:
        self.bar.update(
            self.task, description="training" if activity == "wait for data" else activity
        )
        yield
        self.bar.update(self.task, description="training")

    @property
    def time_left(self) -> str:
        """The estimated time to the last step: 3h07m or 5m20s, at the mean speed so far, with
        validations.
        """
        elapsed = time.perf_counter() - self.started
        left = round(elapsed / (self.step - self.first_step) * (self.steps - self.step))
        minutes, seconds = divmod(left, 60)
        return (
            f"{minutes // 60}h{minutes % 60:02}m" if minutes >= 60 else f"{minutes}m{seconds:02}s"
        )

    def _extend(self, name: str, value: float) -> None:
        if math.isfinite(value):
            self.curves[name].append(value)
            self._show_line(name, f"{sparkline(self.curves[name], CURVE_WIDTH)} {value:.2f}")

    def _show_line(self, name: str, text: str) -> None:
        # A new dictionary, since the thread that draws the panel may be reading the old one.
        self.bar.lines = self.bar.lines | {
            name: "".join(c if c.isprintable() else " " for c in text)
        }


class Panel(ProgressBar):
    """A progress bar with named lines below it."""

    lines: Mapping[str, str] = {}

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for name, line in self.lines.items():
            yield Text(f"{name:12}{line}", no_wrap=True, overflow="ellipsis")


def sparkline(values: Sequence[float], width: int) -> str:
    """Returns a curve of at most `width` block characters, each for the mean of about equally many
    values.
    """
    groups = np.array_split(np.asarray(values, float), min(width, len(values)))
    means = np.array([group.mean() for group in groups])
    heights = (means - means.min()) / (np.ptp(means) or 1.0)
    return "".join(BLOCKS[round(height * (len(BLOCKS) - 1))] for height in heights)
