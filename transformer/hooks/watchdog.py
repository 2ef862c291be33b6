"""A timer that ends a run which hangs, in a collective or a driver, and so frees its machines."""

import contextlib
import faulthandler
import sys
import threading
from contextlib import AbstractContextManager

from transformer import locks
from transformer.hooks.hook import Hook


class Watchdog(Hook):
    """Ends the process if no step and no poll follows the last one within `seconds`; 0 disables it.

    It first writes the stacks of all threads to standard error; the exit code is 1. A thread of the C library measures
    the time, so that code which never returns to Python is detected too.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._is_running, self._lock = False, threading.Lock()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def before_step(self, step: int) -> None:
        self.start()

    def poll(self) -> None:
        self.extend()

    def during(self, activity: str) -> AbstractContextManager:
        """Allows any time for restoring after a rollback, and for planning an epoch as long as it makes progress."""
        if activity == "rolling back":
            self.stop()
        elif activity == "validating":
            self.start()
        return locks.progress_reported_to(self.extend) if activity == "wait for data" else contextlib.nullcontext()

    def start(self) -> None:
        self._is_running = self.seconds > 0
        self.extend()

    def extend(self) -> None:
        """Restarts the timer if it is running. Another thread may call this when it makes progress."""
        with self._lock:
            if self._is_running:
                faulthandler.dump_traceback_later(self.seconds, exit=True, file=sys.__stderr__)

    def stop(self) -> None:
        with self._lock:
            self._is_running = False
            faulthandler.cancel_dump_traceback_later()
