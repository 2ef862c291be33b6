"""Progress bars of the slow parts of preparation: on a terminal's standard error, nowhere else."""

import contextlib
import sys
from collections.abc import Callable, Iterator

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
    with progress.Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as shown:
        task = shown.add_task(description, total=total)
        yield lambda advance: shown.advance(task, advance)
