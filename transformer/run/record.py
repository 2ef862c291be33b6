"""The record of a run: `metrics.jsonl`, the curves of TensorBoard, and log lines."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsFloat

import numpy as np
from absl import logging
from jaxtyping import UInt8
from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from transformer import files
from transformer.data.batches.epoch_plan import EpochPlan
from transformer.data.corpus.corpus import Corpus
from transformer.decoding.bleu import describe_scores, metrics_in
from transformer.run.attention_image import as_png, attention_image
from transformer.training.metrics import Record
from transformer.training.progress import Progress
from transformer.training.samples import Sample
from transformer.workdir import Workdir

NOT_DRAWN = ("step", "split", "examples", "tokens", "seconds")
TIMINGS = ("seconds", "steps_per_second", "tokens_per_second", "waiting_fraction")


class Recorder:
    """The writer of the record. It first removes the lines after the checkpoint that a resumed run starts from.

    These may include the validation of the checkpoint's step, which is then repeated.
    """

    def __init__(self, workdir: Workdir, progress: Progress):
        self.path, self.workdir = workdir.metrics, workdir
        reached = {"train": progress.step, "valid": progress.validated_step}
        kept, removed = [], []
        for line in read_record(self.path):
            (kept if line["step"] <= reached[line["split"]] else removed).append(line)
        if self.path.exists():
            files.write_text(self.path, "".join(f"{json.dumps(line)}\n" for line in kept))
        first_step = min([progress.step + 1, *(line["step"] for line in removed)])
        self.tensorboard = TensorBoardWriter(workdir.tensorboard, first_step)
        for line in kept:
            if line["step"] >= first_step:
                self._draw(line)

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *_) -> None:
        self.tensorboard.close()

    def write(self, split: str, progress: Progress, values: Record) -> None:
        """Writes a line of the split "train" or "valid"."""
        self.workdir.check_in_place()
        line = {"step": progress.step, "split": split, **values}
        line |= {"examples": progress.examples, "tokens": progress.tokens, "seconds": progress.seconds}
        line |= files.six_digits({name: line[name] for name in TIMINGS if name in line})
        files.append_line(self.path, json.dumps(line))
        self._draw(line)

    def write_samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Adds the samples of a validation to TensorBoard."""
        for number, sample in enumerate(samples, start=1):
            lines = {"source": sample.source, "reference": sample.reference, "translation": sample.translation}
            # Markdown shows lines that begin with four spaces without changes.
            text = "".join(f"    {name:12}{line}\n" for name, line in lines.items())
            self.tensorboard.add_text(step, f"sample {number}", text)
            if sample.attention is not None:
                self.tensorboard.add_image(step, f"cross-attention {number}", attention_image(sample.attention.cross))

    def _draw(self, line: Record) -> None:
        points = {f"{line['split']}/{name}": value for name, value in line.items() if name not in NOT_DRAWN}
        self.tensorboard.add(line["step"], points)


class TensorBoardWriter:
    """The writer of one event file, which replaces the points of earlier files from `first_step` on.

    tensorboardX's `SummaryWriter` writes in a thread. When a full disk ends that thread, the training loop hangs.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        folder.mkdir(exist_ok=True)
        # EventsWriter names files by the second; two may be created in the same one.
        self.writer = EventsWriter(str(folder / "events"), f".{time.time_ns()}")
        self._write(first_step, file_version="brain.Event:2")
        self._write(first_step, session_log=SessionLog(status=SessionLog.START))

    def add(self, step: int, values: Mapping[str, SupportsFloat]) -> None:
        """Adds a point to each named curve."""
        points = [Summary.Value(tag=name, simple_value=float(value)) for name, value in values.items()]
        self._write(step, summary=Summary(value=points))

    def add_text(self, step: int, name: str, text: str) -> None:
        """Adds a text, which TensorBoard shows as Markdown."""
        self._write(step, summary=summary.text(name, text))

    def add_image(self, step: int, name: str, grey: UInt8[np.ndarray, "height width"]) -> None:
        height, width = grey.shape
        image = Summary.Image(height=height, width=width, colorspace=1, encoded_image_string=as_png(grey))
        self._write(step, summary=Summary(value=[Summary.Value(tag=name, image=image)]))

    def close(self) -> None:
        self.writer.close()

    def _write(self, step: int, **content: Any) -> None:
        self.writer.write_event(Event(wall_time=time.time(), step=step, **content))
        self.writer.flush()


def read_record(path: Path) -> list[Record]:
    """Returns the lines of a `metrics.jsonl`, without damaged ones; none if there is no such file."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    return [line for line in map(_parse_line, text.split("\n")) if line is not None]


def read_untimed(path: Path) -> list[Record]:
    """Returns the lines of a `metrics.jsonl` without their timings: what every repetition of the run reproduces."""
    return [{key: value for key, value in line.items() if key not in TIMINGS} for line in read_record(path)]


def _parse_line(line: str) -> Record | None:
    """Returns a line of the record; None if it is damaged."""
    try:
        record = json.loads(line)
        is_valid = type(record["step"]) is int and record["split"] in ("train", "valid")
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return record if is_valid else None


def log_training(progress: Progress, values: Record, time_left: str) -> None:
    waiting = f"  ({values['waiting_fraction']:.0%} waiting for data)" if values["waiting_fraction"] >= 0.05 else ""
    skipped = f"  ({values['skipped']} updates skipped: not finite)" if values["skipped"] else ""
    logging.info(
        "step %d  loss %.3f  ppl %.4g  lr %.1e  %.1fk tok/s  %s left%s%s",
        *(progress.step, values["loss"], values["perplexity"], values["learning_rate"]),
        *(values["tokens_per_second"] / 1000, time_left, waiting, skipped),
    )


def log_validation(progress: Progress, values: Record) -> None:
    scores = "".join(f"  {text}" for text in describe_scores(values, metrics_in("log")))
    best = "  (best)" if progress.is_best else ""
    logging.info(
        "step %d  validation  loss %.3f  ppl %.4g%s%s",
        *(progress.step, values["loss"], values["perplexity"], scores, best),
    )


def log_batches(plan: EpochPlan, corpus: Corpus) -> None:
    logging.info(
        "Batches: %d per epoch, %.1f %% padding%s, %d shapes (--plan lists them).",
        *(len(plan), 100 * plan.padding_fraction, beside_room(corpus), len(plan.stats)),
    )


def beside_room(corpus: Corpus) -> str:
    """Returns what a report of the padding in plans adds: with subword sampling they count reserved tokens."""
    return " beside the room for samples" if corpus.sampler is not None else ""
