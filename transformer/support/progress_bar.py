"""Progress bars on terminals, and reports of progress to waiting processes."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

from absl import logging
from rich import progress
from rich.console import Console, RenderableType
from rich.text import Text

from transformer.support import locks

LOG_SECONDS = 10.0
REPORT_SECONDS = 1.0  # between two reports of progress, at least


@contextlib.contextmanager
def bar(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yields a function that advances a bar.

    If standard error is not a terminal, a line is logged every `LOG_SECONDS` instead.
    """
    # The first report is immediate.
    next_report = 0.0
    next_line = time.monotonic() + LOG_SECONDS
    is_logged = threading.current_thread() is threading.main_thread() and not sys.stderr.isatty()
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
    )
    with make_bar(*columns) as rich_bar:
        task = rich_bar.add_task(description, total=total)

        def advance(count: int) -> None:
            nonlocal next_report, next_line
            rich_bar.advance(task, count)
            if is_logged and time.monotonic() > next_line:
                next_line = time.monotonic() + LOG_SECONDS
                logging.info(f"{description}: {rich_bar.tasks[0].completed:,} of {total:,}.")
            if time.monotonic() > next_report:
                next_report = time.monotonic() + REPORT_SECONDS
                locks.report_progress()

        yield advance


class Bar(progress.Progress):
    """A progress bar with named lines below it."""

    lines: dict[str, str] = {}

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for name, line in self.lines.items():
            yield Text(f"{name:12}{line}", no_wrap=True, overflow="ellipsis")


def make_bar(*columns: progress.ProgressColumn) -> Bar:
    """Returns a bar with these columns that disappears at its end."""
    # The bar of a background thread would overwrite the bar of training. Processes other than
    # process 0 only log warnings, and show no bar.
    is_main = threading.current_thread() is threading.main_thread()
    is_shown = sys.stderr.isatty() and is_main and logging.level_info()
    return Bar(*columns, console=Console(stderr=True), transient=True, disable=not is_shown)
