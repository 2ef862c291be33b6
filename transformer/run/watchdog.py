"""A run that hangs, in a collective or a driver, ends instead of holding its machines for days."""

import faulthandler
import sys


class Watchdog:
    """Inside its `with` block the process ends unless `beat` is called every so many seconds; 0: never.

    It first writes the stacks of all threads to standard error, and exits with 1. A thread of the C library counts the
    time, so that code which never returns to Python is found too.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __enter__(self) -> "Watchdog":
        self.beat()
        return self

    def __exit__(self, *_) -> None:
        self.pause()

    def beat(self) -> None:
        """The run goes on: count from here."""
        if self.seconds > 0:
            faulthandler.dump_traceback_later(self.seconds, exit=True, file=sys.__stderr__)

    def pause(self) -> None:
        """Do not count until the next beat: what comes may take as long as it likes."""
        if self.seconds > 0:
            faulthandler.cancel_dump_traceback_later()
