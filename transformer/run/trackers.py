"""Trackers: programs that draw the record of a run, beside `metrics.jsonl` (`training.trackers`)."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from transformer.training.progress import Record
from transformer.training.validation import Sample
from transformer.workdir import Workdir

NOT_DRAWN = ("step", "split", "examples", "tokens", "seconds")
CELL, GAP, FRAME = 6, 6, 160  # attention: pixels of a weight, pixels between two maps, and their grey


class TensorBoard:
    """Event files in the workdir, with curves, and texts and cross-attention of the samples."""

    def __init__(self, workdir: Workdir) -> None:
        self.folder = workdir.tensorboard
        self._events: EventsWriter | None = None

    def start(self, first_step: int, lines: Sequence[Record]) -> None:
        """Hides the points from `first_step` on, and draws again the `lines` of these steps that the record keeps."""
        self.close()  # after a rollback, which starts another file
        # tensorboardX's `SummaryWriter` writes in a thread. When a full disk ends that thread, the training loop hangs.
        # EventsWriter names files by the second; two may be created in the same one.
        self._events = EventsWriter(str(self.folder / "events"), f".{time.time_ns()}")
        self._add(first_step, file_version="brain.Event:2")
        self._add(first_step, session_log=SessionLog(status=SessionLog.START))  # hides earlier points from this step on
        for line in lines:
            self.draw(line)

    def draw(self, line: Record) -> None:
        """Draws a line of the record."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in points(line).items()]
        self._add(line["step"], summary=Summary(value=values))

    def show(self, step: int, samples: Sequence[Sample]) -> None:
        """Writes the texts of the samples, and pictures of their cross-attention if they have one."""
        for number, sample in enumerate(samples, start=1):
            lines = {"source": sample.source, "reference": sample.reference, "translation": sample.translation}
            # TensorBoard shows Markdown, where lines that begin with four spaces stay unchanged.
            text = "".join(f"    {name:12}{line}\n" for name, line in lines.items())
            self._add(step, summary=summary.text(f"sample {number}", text))
            if sample.attention is not None:
                grey = attention_image(sample.attention.cross)
                image = summary.make_image(np.stack([grey] * 3, axis=-1))
                value = Summary.Value(tag=f"cross-attention {number}", image=image)
                self._add(step, summary=Summary(value=[value]))

    def close(self) -> None:
        if self._events is not None:
            self._events.close()

    def _add(self, step: int, **content: Any) -> None:
        self._events.write_event(Event(wall_time=time.time(), step=step, **content))
        self._events.flush()


def points(line: Record) -> dict[str, float]:
    """Returns the values of a line that trackers draw, each under "SPLIT/NAME"."""
    return {f"{line['split']}/{name}": float(value) for name, value in line.items() if name not in NOT_DRAWN}


def attention_image(weights: Float[np.ndarray, "N H Q K"]) -> UInt8[np.ndarray, "height width"]:
    """Returns a map of grey values for each head, in a row for each layer: white for a weight of 0, black for 1."""
    layers, heads, queries, keys = weights.shape
    grey = np.rint(255 * (1 - weights)).astype(np.uint8).repeat(CELL, axis=2).repeat(CELL, axis=3)
    height, width = queries * CELL + GAP, keys * CELL + GAP
    framed = np.full((layers, heads, height, width), FRAME, np.uint8)
    framed[:, :, GAP // 2 : -GAP // 2, GAP // 2 : -GAP // 2] = grey
    return framed.transpose(0, 2, 1, 3).reshape(layers * height, heads * width)
