"""A training run in the log and on the terminal: losses, scores, the activity and the time left."""

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from absl import logging
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

from transformer.config.types import Config
from transformer.decoding.metrics import METRICS, describe_scores, metrics_in
from transformer.hooks.hook import Hook
from transformer.support.progress_bar import make_bar
from transformer.training.progress import Progress, Record
from transformer.training.samples import ValidationSample

BLOCKS = "▁▂▃▄▅▆▇█"
CURVE_WIDTH = 48  # characters


class Status(Hook):
    """A hook that logs losses and scores.

    A terminal also shows a progress bar, curves since this start, and a translation.
    """

    def __init__(self, config: Config) -> None:
        self.steps = config.training.steps
        self.bar = make_bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=14),
            MofNCompleteColumn(),
            TextColumn("{task.fields[scores]}{task.fields[left]}"),
        )
        # Values since this start, which the sparklines show.
        self.curves: dict[str, list[float]] = defaultdict(list)
        self.task = self.bar.add_task("training", total=self.steps, scores="", left="")

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def on_start(self, progress: Progress) -> None:
        self.step = self.first_step = progress.step
        self.bar.update(self.task, completed=self.step, left="")

    def before_step(self, step: int) -> None:
        # The bar starts after the compilation, which shows its own bar.
        if self.step == self.first_step:
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
        # Notes about causes of slow or missing progress.
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

    def on_validation(
        self, progress: Progress, values: Record, samples: Sequence[ValidationSample]
    ) -> None:
        # The metrics that the log shows, such as BLEU, also have curves.
        for name in metrics_in("log"):
            if name in values:
                self._extend(METRICS[name].label, values[name])
        if samples:
            self._show_line("source", samples[-1].source)
            self._show_line("translation", samples[-1].translation)
        scores = "".join(f"  {text}" for text in describe_scores(values, metrics_in("log")))
        # Scores of further validation sets, such as "bleu/news".
        for key, value in values.items():
            metric, slash, name = key.partition("/")
            if slash and metric in metrics_in("log"):
                scores += f"  {name} {value:.2f}"
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
        # Waiting for data is so frequent that the bar would flicker.
        description = "training" if activity == "wait for data" else activity
        self.bar.update(self.task, description=description)
        yield
        self.bar.update(self.task, description="training")

    @property
    def time_left(self) -> str:
        """The estimated time to the last step, such as 3h07m or 5m20s.

        The estimate is the mean time of a step so far, including validations.
        """
        seconds_per_step = (time.perf_counter() - self.started) / (self.step - self.first_step)
        minutes, seconds = divmod(round(seconds_per_step * (self.steps - self.step)), 60)
        if minutes >= 60:
            return f"{minutes // 60}h{minutes % 60:02}m"
        return f"{minutes}m{seconds:02}s"

    def _extend(self, name: str, value: float) -> None:
        if math.isfinite(value):
            self.curves[name].append(value)
            self._show_line(name, f"{sparkline(self.curves[name], CURVE_WIDTH)} {value:.2f}")

    def _show_line(self, name: str, text: str) -> None:
        line = "".join(c if c.isprintable() else " " for c in text)
        # A new dictionary, since the thread that draws the bar may be reading the old one.
        self.bar.lines = self.bar.lines | {name: line}


def sparkline(values: Sequence[float], width: int) -> str:
    """Returns a curve of at most `width` block characters, each for a mean of neighbours."""
    groups = np.array_split(np.asarray(values, float), min(width, len(values)))
    means = np.array([group.mean() for group in groups])
    # A constant curve has heights of 0.
    heights = (means - means.min()) / (np.ptp(means) or 1.0)
    return "".join(BLOCKS[round(height * (len(BLOCKS) - 1))] for height in heights)
