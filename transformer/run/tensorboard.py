"""Files for TensorBoard: points of curves, and samples with pictures of their attention."""

import io
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, SupportsFloat

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image
from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from transformer.training.validation import Sample

CELL, GAP = 6, 6  # pixels of a weight, and between two maps
FRAME = 160  # grey


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

    def add_sample(self, step: int, number: int, sample: Sample) -> None:
        """Adds the texts of a sample of a validation, and a picture of its cross-attention if it has one."""
        lines = {"source": sample.source, "reference": sample.reference, "translation": sample.translation}
        # TensorBoard shows Markdown, where lines that begin with four spaces stay unchanged.
        text = "".join(f"    {name:12}{line}\n" for name, line in lines.items())
        self._write(step, summary=summary.text(f"sample {number}", text))
        if sample.attention is not None:
            grey, png = attention_image(sample.attention.cross), io.BytesIO()
            Image.fromarray(grey).save(png, format="PNG", optimize=True)
            height, width = grey.shape
            image = Summary.Image(height=height, width=width, colorspace=1, encoded_image_string=png.getvalue())
            self._write(step, summary=Summary(value=[Summary.Value(tag=f"cross-attention {number}", image=image)]))

    def close(self) -> None:
        self.writer.close()

    def _write(self, step: int, **content: Any) -> None:
        self.writer.write_event(Event(wall_time=time.time(), step=step, **content))
        self.writer.flush()


def attention_image(weights: Float[np.ndarray, "N H Q K"]) -> UInt8[np.ndarray, "height width"]:
    """Returns a map of grey values for each head, in a row for each layer: white for a weight of 0, black for 1."""
    layers, heads, queries, keys = weights.shape
    grey = np.rint(255 * (1 - weights)).astype(np.uint8).repeat(CELL, axis=2).repeat(CELL, axis=3)
    height, width = queries * CELL + GAP, keys * CELL + GAP
    framed = np.full((layers, heads, height, width), FRAME, np.uint8)
    framed[:, :, GAP // 2 : -GAP // 2, GAP // 2 : -GAP // 2] = grey
    return framed.transpose(0, 2, 1, 3).reshape(layers * height, heads * width)
