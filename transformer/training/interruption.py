"""Ctrl-C and SIGTERM during training: finish the step, save, then stop. A second one stops at once."""

import signal

from absl import logging


class Interrupted(Exception):
    """Raised by `Interruption.check` in work that is not worth finishing first: it will be done again."""


class Interruption:
    """Inside its `with` block a first signal is only noted; the signals' earlier handlers come back after it.

    Attributes:
      asked: the signal that came, or None.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self.handlers = {}

    def __enter__(self) -> "Interruption":
        for number in (signal.SIGINT, signal.SIGTERM):
            self.handlers[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raises Interrupted if a signal has come."""
        if self.asked is not None:
            raise Interrupted

    def _ask(self, number: int, frame: object) -> None:
        if self.asked is not None:
            raise KeyboardInterrupt("interrupted twice: stopped without saving")
        self.asked = number
        logging.info("Interrupted: saving after this step. Once more stops at once.")
