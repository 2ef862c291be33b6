"""Waiting for another process: it says what for, and has an end."""

import time
from collections.abc import Iterator

from absl import logging

from transformer.errors import UserError

SILENT_SECONDS = 10  # of waiting, before a line says so; then one a minute


def poll_until(what: str, advice: str, seconds: int) -> Iterator[None]:
    """For a loop that looks for something: yields before each look, for as long as the loop goes on.

    Raises UserError, naming what was waited for, once that has taken so many seconds.
    """
    began, told = time.monotonic(), SILENT_SECONDS - 60
    while True:
        yield
        waited = time.monotonic() - began
        if waited > seconds:
            raise UserError(f"waited {waited:.0f} s for {what}; {advice}, or raise config.data.wait_seconds={seconds}")
        if waited > told + 60:
            told = waited
            logging.warning("Waiting for %s: %.0f s so far, of at most %d.", what, waited, seconds)
