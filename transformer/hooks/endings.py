"""Early ends of a run: signals, after which it saves, and a timer for a run that hangs."""

import faulthandler
import signal
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
        # Python calls the handlers in the main thread, between two bytecodes.
        numbers = (signal.SIGINT, *runtime.TERMINATIONS)
        self._handlers = {number: signal.signal(number, self._record) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def stop_requested(self) -> bool:
        """True if any process received a signal. All processes must call it equally often."""
        return self._any_process(self.signal is not None)

    def poll(self) -> None:
        """Raises Interrupted if any process received a signal.

        All processes must call it equally often.
        """
        if self.stop_requested():
            raise Interrupted

    def _record(self, number: int, frame: object) -> None:
        is_first = self.signal is None
        if is_first:
            self.signal = number
        # Only Ctrl-C has a second stage: a machine that shuts down may send several other signals.
        if number != signal.SIGINT:
            return
        if not is_first:
            raise KeyboardInterrupt("interrupted twice: stopped without saving")
        logging.info(
            "Interrupted: stopping after this step or compilation; "
            "press Ctrl-C again to stop at once"
        )


class Watchdog(Hook):
    """A timer that ends the process if no step or poll happens for `seconds`; 0 disables it.

    It first writes the stacks of all threads to standard error. The exit code is 1. A thread in C
    measures the time, so that it also detects code that never returns to Python.
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
        # Each call replaces the previous timer.
        if self._is_running:
            faulthandler.dump_traceback_later(self.seconds, exit=True, file=2)

    def during(self, activity: str) -> AbstractContextManager:
        """Stops the timer while a rollback restores a checkpoint."""
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
