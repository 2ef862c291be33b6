"""Ctrl-C and SIGTERM during training: finish the step, save, then stop. A second Ctrl-C stops at once.

A second SIGTERM does not: where a machine is shut down, or a sweep is ended, several send one.
"""

import signal

from absl import logging

from transformer.distributed import coordination as distributed


class Interrupted(Exception):
    """Raised by `Interruption.check` in work that is not worth finishing first: it will be done again."""


class Interruption:
    """Inside its `with` block a first signal is only noted; the signals' earlier handlers come back after it.

    Attributes:
      signal: the one that came to this process, or None.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.handlers = {}
        self.agreed = distributed.Agreement()

    def __enter__(self) -> "Interruption":
        for number in (signal.SIGINT, signal.SIGTERM):
            self.handlers[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def asked(self) -> bool:
        """Whether to stop: the same in all processes, which must call it equally often."""
        return self.agreed(self.signal is not None)

    def check(self) -> None:
        """Raises Interrupted if it is time to stop."""
        if self.asked():
            raise Interrupted

    def _note(self, number: int, frame: object) -> None:
        if self.signal is None:
            self.signal = number
            logging.info("Interrupted: saving after this step. Ctrl-C once more stops at once.")
        elif number == signal.SIGINT:
            raise KeyboardInterrupt("interrupted twice: stopped without saving")
