"""Progress bars of the slow parts of preparation: on a terminal's standard error, nowhere else."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

from absl import logging
from rich import progress
from rich.console import Console


@contextlib.contextmanager
def bar(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows a bar while the block runs and yields the function that moves it on by so many units."""
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    # In the background, while training goes on, it would write over training's own bar. Of several processes one shows
    # what goes well: the others log warnings alone.
    background = threading.current_thread() is not threading.main_thread()
    hidden = not sys.stderr.isatty() or background or not logging.level_info()
    with progress.Progress(*columns, console=console, transient=True, disable=hidden) as shown:
        task = shown.add_task(description, total=total)
        yield lambda advance: shown.advance(task, advance)
