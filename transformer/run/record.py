"""The record of a run: `metrics.jsonl`, which trackers draw."""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

from absl import logging

from transformer.config.types import Config, names_in
from transformer.hooks.hook import Hook
from transformer.run.trackers import TRACKERS, Tracker
from transformer.support import files
from transformer.support.errors import MALFORMED
from transformer.training.progress import Progress, Record
from transformer.training.samples import ValidationSample
from transformer.workdir import Workdir

# Measured values, which are rounded, since they differ between runs anyway.
TIMINGS = (
    "seconds",
    "validation_seconds",
    "steps_per_second",
    "tokens_per_second",
    "waiting_fraction",
)


class Recorder(Hook):
    """The writer of the record. `corpora` are the labels of the corpora of a mixture."""

    def __init__(self, workdir: Workdir, config: Config, corpora: Sequence[str] = ()):
        self.path = workdir.metrics
        self.workdir = workdir
        self.config = config
        self.corpora = corpora
        # None before the first event, which constructs the tracker.
        self.trackers: dict[str, Tracker | None] = dict.fromkeys(names_in(config.training.trackers))
        self.progress = Progress()  # after the last step
        # of the last step, if `training.module_norms` is set
        self.module_norms: dict = {}

    def __exit__(self, kind: object, *_: object) -> None:
        self.trackers = {
            name: tracker for name, tracker in self.trackers.items() if tracker is not None
        }
        status = "KILLED"
        if kind:
            status = "FAILED"
        elif self.progress.is_finished(self.config.training):
            status = "FINISHED"
        self._track("close", status)

    def on_start(self, progress: Progress) -> None:
        """Removes the lines after the checkpoint, and their points in the trackers.

        This includes a validation at the checkpoint's step, if the run repeats it.
        """
        self.module_norms = {}
        self.progress = progress
        # A line of training and a validation of the same step are written at different times.
        last_steps = {"train": progress.step, "valid": progress.validated_step}
        first_step = progress.step + 1
        lines = []
        for line in read_record(self.path):
            if line["step"] <= last_steps[line["split"]]:
                lines.append(line)
            else:
                first_step = min(first_step, line["step"])
        if self.path.exists():
            files.write_text(self.path, "".join(f"{json.dumps(line)}\n" for line in lines))
        self.workdir.tensorboard.mkdir(exist_ok=True)
        self._track("start", first_step, lines)

    def after_step(self, progress: Progress, metrics: dict) -> None:
        self.module_norms = metrics["module_norms"]
        self.progress = progress

    def on_log(self, progress: Progress, values: Record) -> None:
        self.write("train", progress, values)

    def on_validation(
        self, progress: Progress, values: Record, samples: Sequence[ValidationSample]
    ) -> None:
        """Writes a line, and shows the samples."""
        self.progress = progress
        # Not strict: before the first step there are no counts.
        for name, count in zip(self.corpora, progress.corpus_tokens, strict=False):
            values = values | {f"train_tokens/{name}": count}
        norms = {name: float(norm) for name, norm in self.module_norms.items()}
        self.write("valid", progress, values | norms)
        self._track("show", progress.step, samples)

    def write(self, split: str, progress: Progress, values: Record) -> None:
        """Writes a line of the split "train" or "valid"."""
        self.workdir.check_in_place()
        line = {
            "step": progress.step,
            "split": split,
            **values,
            "examples": progress.examples,
            "tokens": progress.tokens,
            "seconds": progress.seconds,
            "validation_seconds": progress.validation_seconds,
        }
        line |= files.six_digits({name: line[name] for name in TIMINGS if name in line})
        # If the disk is full, this line is incomplete; `on_start` removes it.
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(line)}\n")
        self._track("draw", line)

    def _track(self, method: str, *arguments: object) -> None:
        """Calls a method of each tracker.

        A tracker that fails is left out until the next start of the run.
        """
        for name, tracker in list(self.trackers.items()):
            # A tracker must never end the training: its server or its package may fail in any way.
            try:
                self.trackers[name] = tracker = tracker or TRACKERS[name](self.workdir, self.config)
                getattr(tracker, method)(*arguments)
            except Exception as error:
                del self.trackers[name]
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                logging.warning(
                    "The tracker %s fails and is left out (%s); "
                    "the next start tries again, and metrics.jsonl has all values.",
                    name,
                    reason,
                )


def read_record(path: Path) -> list[Record]:
    """Returns the undamaged lines of a `metrics.jsonl`. A missing file has no lines."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    record = []
    for line in text.split("\n"):
        with contextlib.suppress(*MALFORMED):
            values = json.loads(line)
            if type(values["step"]) is int and values["split"] in ("train", "valid"):
                record.append(values)
    return record
