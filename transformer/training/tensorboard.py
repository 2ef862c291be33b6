"""The curves that TensorBoard shows.

Written by whoever calls: tensorboardX's `SummaryWriter` does it in a thread, and when that dies of a full disk the loop
waits for it for ever.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, SupportsFloat

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary


class TensorBoardWriter:
    """A file of the folder. From `first_step` on it takes the place of what earlier files have."""

    def __init__(self, folder: Path, first_step: int) -> None:
        folder.mkdir(exist_ok=True)
        # The writer's names tell seconds apart; there may be two files in one.
        self.writer = EventsWriter(str(folder / "events"), f".{time.time_ns()}")
        self._write(first_step, file_version="brain.Event:2")
        self._write(first_step, session_log=SessionLog(status=SessionLog.START))

    def add(self, step: int, values: Mapping[str, SupportsFloat]) -> None:
        """A point of each curve, by name."""
        points = [Summary.Value(tag=name, simple_value=float(value)) for name, value in values.items()]
        self._write(step, summary=Summary(value=points))

    def close(self) -> None:
        self.writer.close()

    def _write(self, step: int, **content: Any) -> None:
        self.writer.write_event(Event(wall_time=time.time(), step=step, **content))
        self.writer.flush()
