"""A timer that ends a run which hangs, in a collective or a driver, and so frees its machines."""

import faulthandler
import sys
import threading


class Watchdog:
    """Ends the process if no `beat` is called for `seconds` inside its `with` block; 0 disables it.

    It first writes the stacks of all threads to standard error; the exit code is 1. A thread of the C library measures
    the time, so that code which never returns to Python is detected too.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._is_paused, self._lock = True, threading.Lock()

    def __enter__(self) -> "Watchdog":
        self.beat()
        return self

    def __exit__(self, *_) -> None:
        self.pause()

    def beat(self) -> None:
        """Restarts the timer."""
        with self._lock:
            self._start()

    def extend(self) -> None:
        """Restarts the timer unless it is paused. Another thread may call this when it makes progress."""
        with self._lock:
            if not self._is_paused:
                self._start()

    def pause(self) -> None:
        """Stops the timer until the next beat, for work that may take any time."""
        with self._lock:
            self._is_paused = True
            if self.seconds > 0:
                faulthandler.cancel_dump_traceback_later()

    def _start(self) -> None:
        self._is_paused = False
        if self.seconds > 0:
            faulthandler.dump_traceback_later(self.seconds, exit=True, file=sys.__stderr__)
