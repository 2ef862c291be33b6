"""The record of a run: `metrics.jsonl`, and its curves and samples in TensorBoard."""

import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from transformer import files
from transformer.data.batches.epoch_plan import Bucket
from transformer.errors import MALFORMED
from transformer.hooks.hook import Hook
from transformer.training.progress import Progress, Record
from transformer.training.state import TrainState
from transformer.training.validation import Sample
from transformer.workdir import Workdir

NOT_DRAWN = ("step", "split", "examples", "tokens", "seconds")
TIMINGS = ("seconds", "steps_per_second", "tokens_per_second", "waiting_fraction")
CELL, GAP, FRAME = 6, 6, 160  # attention: pixels of a weight, pixels between two maps, and their grey


class Recorder(Hook):
    """The writer of the record."""

    def __init__(self, workdir: Workdir, corpora: Sequence[str] = ()):  # the labels of a mixture's
        self.path, self.workdir, self.corpora = workdir.metrics, workdir, corpora
        self._events: EventsWriter | None = None

    def __exit__(self, *_: object) -> None:
        if self._events is not None:
            self._events.close()

    def on_start(self, state: TrainState, progress: Progress, buckets: Sequence[Bucket]) -> None:
        """Removes the lines after the checkpoint, also a validation of its step that is repeated, and their points."""
        reached = {"train": progress.step, "valid": progress.validated_step}
        kept, removed = [], []
        for line in read_record(self.path):
            (kept if line["step"] <= reached[line["split"]] else removed).append(line)
        if self.path.exists():
            files.write_text(self.path, "".join(f"{json.dumps(line)}\n" for line in kept))
        self.__exit__()  # after a rollback, which starts another file
        self.workdir.tensorboard.mkdir(exist_ok=True)
        # tensorboardX's `SummaryWriter` writes in a thread. When a full disk ends that thread, the training loop hangs.
        # EventsWriter names files by the second; two may be created in the same one.
        self._events = EventsWriter(str(self.workdir.tensorboard / "events"), f".{time.time_ns()}")
        first_step = min([progress.step + 1, *(line["step"] for line in removed)])
        self._add(first_step, file_version="brain.Event:2")
        self._add(first_step, session_log=SessionLog(status=SessionLog.START))  # hides earlier points from this step on
        for line in kept:
            if line["step"] >= first_step:
                self._draw(line)

    def on_log(self, progress: Progress, values: Record) -> None:
        self.write("train", progress, values)

    def on_validation(self, progress: Progress, values: Record, samples: Sequence[Sample]) -> None:
        """Writes a line, the texts of the samples, and pictures of their cross-attention if they have one."""
        counts = zip(self.corpora, progress.corpus_tokens, strict=False)  # before the first step there are none
        self.write("valid", progress, values | {f"train_tokens/{name}": count for name, count in counts})
        for number, sample in enumerate(samples, start=1):
            lines = {"source": sample.source, "reference": sample.reference, "translation": sample.translation}
            # TensorBoard shows Markdown, where lines that begin with four spaces stay unchanged.
            text = "".join(f"    {name:12}{line}\n" for name, line in lines.items())
            self._add(progress.step, summary=summary.text(f"sample {number}", text))
            if sample.attention is not None:
                grey = attention_image(sample.attention.cross)
                image = summary.make_image(np.stack([grey] * 3, axis=-1))
                value = Summary.Value(tag=f"cross-attention {number}", image=image)
                self._add(progress.step, summary=Summary(value=[value]))

    def write(self, split: str, progress: Progress, values: Record) -> None:
        """Writes a line of the split "train" or "valid"."""
        self.workdir.check_in_place()
        line = {"step": progress.step, "split": split, **values}
        line |= {"examples": progress.examples, "tokens": progress.tokens, "seconds": progress.seconds}
        line |= files.six_digits({name: line[name] for name in TIMINGS if name in line})
        files.append_line(self.path, json.dumps(line))
        self._draw(line)

    def _draw(self, line: Record) -> None:
        points = {f"{line['split']}/{name}": float(value) for name, value in line.items() if name not in NOT_DRAWN}
        values = [Summary.Value(tag=name, simple_value=value) for name, value in points.items()]
        self._add(line["step"], summary=Summary(value=values))

    def _add(self, step: int, **content: Any) -> None:
        self._events.write_event(Event(wall_time=time.time(), step=step, **content))
        self._events.flush()


def attention_image(weights: Float[np.ndarray, "N H Q K"]) -> UInt8[np.ndarray, "height width"]:
    """Returns a map of grey values for each head, in a row for each layer: white for a weight of 0, black for 1."""
    layers, heads, queries, keys = weights.shape
    grey = np.rint(255 * (1 - weights)).astype(np.uint8).repeat(CELL, axis=2).repeat(CELL, axis=3)
    height, width = queries * CELL + GAP, keys * CELL + GAP
    framed = np.full((layers, heads, height, width), FRAME, np.uint8)
    framed[:, :, GAP // 2 : -GAP // 2, GAP // 2 : -GAP // 2] = grey
    return framed.transpose(0, 2, 1, 3).reshape(layers * height, heads * width)


def read_record(path: Path) -> list[Record]:
    """Returns the lines of a `metrics.jsonl`, without damaged ones; none if there is no such file."""
    text, record = path.read_text(encoding="utf-8", errors="replace") if path.exists() else "", []
    for line in text.split("\n"):
        with contextlib.suppress(*MALFORMED):
            values = json.loads(line)
            if type(values["step"]) is int and values["split"] in ("train", "valid"):
                record.append(values)
    return record
