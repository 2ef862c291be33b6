"""Early ends of a run: signals, after which it saves, and a timer that ends a run which hangs."""

import faulthandler
import signal
import sys
from contextlib import AbstractContextManager

from absl import logging

from transformer.distributed import coordination
from transformer.hooks.hook import Hook
from transformer.support import runtime


class Interrupted(Exception):
    """Raised by `Interruption.poll` to abandon work that a resumed run repeats."""


class Interruption(Hook):
    """Records the first interruption: the run ends its step, saves and stops.

    A second Ctrl-C stops at once.
    """

    def __init__(self) -> None:
        self.signal: int | None = None  # the first that this process received
        self._any_process = coordination.AnyProcess()

    def __enter__(self) -> "Interruption":
        numbers = (signal.SIGINT, *runtime.TERMINATIONS)
        self._handlers = {number: signal.signal(number, self._record) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def stop_requested(self) -> bool:
        """Tells whether any process received a signal. All processes must call it equally often."""
        return self._any_process(self.signal is not None)

    def poll(self) -> None:
        """Raises Interrupted if any process received a signal.

        All processes must call it equally often.
        """
        if self.stop_requested():
            raise Interrupted

    def _record(self, number: int, frame: object) -> None:
        if self.signal is None:
            self.signal = number
            if number == signal.SIGINT:
                logging.info(
                    "Interrupted: stopping after this step or compilation; press Ctrl-C again to stop at once"
                )
        # a second one changes nothing: a machine that shuts down may send several
        elif number == signal.SIGINT:
            raise KeyboardInterrupt("interrupted twice: stopped without saving")


class Watchdog(Hook):
    """Ends the process if no step and no poll follows the last one within `seconds`; 0 disables it.

    It first writes the stacks of all threads to standard error; the exit code is 1. A thread of the
    C library measures the time, so that code which never returns to Python is detected too.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._is_running = False

    def __exit__(self, *_: object) -> None:
        self.stop()

    def before_step(self, step: int) -> None:
        self.start()

    def poll(self) -> None:
        """Restarts the timer if it is running."""
        if self._is_running:
            faulthandler.dump_traceback_later(self.seconds, exit=True, file=sys.__stderr__)

    def during(self, activity: str) -> AbstractContextManager:
        """Allows any time for restoring after a rollback."""
        if activity == "rolling back":
            self.stop()
        elif activity == "validating":
            self.start()
        return super().during(activity)

    def start(self) -> None:
        self._is_running = self.seconds > 0
        self.poll()

    def stop(self) -> None:
        self._is_running = False
        faulthandler.cancel_dump_traceback_later()
