"""Ctrl-C and SIGTERM during training: the run finishes its step, saves and stops. A second Ctrl-C stops at once."""

import signal

from absl import logging

from transformer.distributed import coordination
from transformer.hooks.hook import Hook


class Interrupted(Exception):
    """Raised by `Interruption.poll` to abandon work that a resumed run repeats."""


class Interruption(Hook):
    """Records the first signal instead of stopping, and restores the earlier handlers at its end."""

    def __init__(self) -> None:
        self.signal: int | None = None  # the first that this process received
        self._any_process = coordination.AnyProcess()

    def __enter__(self) -> "Interruption":
        self._handlers = {number: signal.signal(number, self._record) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def stop_requested(self) -> bool:
        """Tells whether any process received a signal. All processes must call it equally often."""
        return self._any_process(self.signal is not None)

    def poll(self) -> None:
        """Raises Interrupted if any process received a signal. All processes must call it equally often."""
        if self.stop_requested():
            raise Interrupted

    def _record(self, number: int, frame: object) -> None:
        if self.signal is None:
            self.signal = number
            if number == signal.SIGINT:
                logging.info("Interrupted: stopping after this step or compilation; press Ctrl-C again to stop at once")
        elif number == signal.SIGINT:  # a second SIGTERM changes nothing: a machine that shuts down may send several
            raise KeyboardInterrupt("interrupted twice: stopped without saving")
