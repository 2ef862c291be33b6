"""Progress bars, shown only if standard error is a terminal, and reports of progress to waiting
processes.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

from absl import logging
from rich import progress
from rich.console import Console

from transformer.support import locks

LOG_SECONDS = 10.0
REPORT_SECONDS = 1.0  # between two reports of progress, at least


@contextlib.contextmanager
def bar(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yields a function that advances a bar, or logs a line every `LOG_SECONDS` if standard error
    is no terminal.
    """
    next_report = 0.0
    next_line = time.monotonic() + LOG_SECONDS
    is_logged = threading.current_thread() is threading.main_thread() and not sys.stderr.isatty()
    columns = progress.BarColumn(), progress.MofNCompleteColumn(), progress.TimeRemainingColumn()
    with make_bar(progress.TextColumn("{task.description}"), *columns) as shown:
        task = shown.add_task(description, total=total)

        def advance(count: int) -> None:
            nonlocal next_report, next_line
            shown.advance(task, count)
            if is_logged and time.monotonic() > next_line:
                next_line = time.monotonic() + LOG_SECONDS
                logging.info(
                    "%s: %s of %s.", description, f"{shown.tasks[0].completed:,}", f"{total:,}"
                )
            if time.monotonic() > next_report:
                next_report = time.monotonic() + REPORT_SECONDS
                locks.report_progress()

        yield advance


def make_bar(
    *columns: progress.ProgressColumn, kind: type = progress.Progress
) -> progress.Progress:
    """Returns a bar with these columns that disappears at its end."""
    # A bar of a background thread would overwrite training's. Processes other than 0 log only
    # warnings and show none.
    is_shown = (
        sys.stderr.isatty()
        and threading.current_thread() is threading.main_thread()
        and logging.level_info()
    )
    return kind(*columns, console=Console(stderr=True), transient=True, disable=not is_shown)
