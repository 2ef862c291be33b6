"""Ctrl-C and SIGTERM during training: finish the step, save, then stop. A second one stops at once."""

import signal

from absl import logging


class Interruption:
    """Inside its `with` block a first signal only sets `asked`; the signals' earlier handlers come back after it."""

    def __init__(self) -> None:
        self.asked = False
        self.handlers = {}

    def __enter__(self) -> "Interruption":
        for number in (signal.SIGINT, signal.SIGTERM):
            self.handlers[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: object) -> None:
        if self.asked:
            raise KeyboardInterrupt("interrupted twice: stopped without saving")
        self.asked = True
        logging.info("Interrupted: saving after this step. Once more stops at once.")
