"""A sweep on a terminal: one display for all its trials. Elsewhere there are only its log lines."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from scripts.sweeping.jobs import Job
from scripts.sweeping.ledger import Ledger, Standing
from scripts.sweeping.results import described, summary
from scripts.sweeping.tasks import Task

EVERY = 2.0  # seconds between changes of what is shown


@contextlib.contextmanager
def display(ledger: Ledger, task: Task, slots: int) -> Iterator[Callable[[Sequence[Job]], None]]:
    """Yields what is to be called, often, with the jobs under way."""
    if not sys.stderr.isatty():
        yield lambda jobs: None
        return
    shown_at = 0.0
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:

        def show(jobs: Sequence[Job]) -> None:
            nonlocal shown_at
            if time.monotonic() - shown_at >= EVERY:
                shown_at = time.monotonic()
                live.update(render(ledger.standings(), ledger, task, jobs, slots), refresh=True)

        yield show


def render(standings: Sequence[Standing], ledger: Ledger, task: Task, jobs: Sequence[Job], slots: int) -> Group:
    """A line on the whole sweep and one on each job."""
    table = Table(box=None, pad_edge=False)
    for name in ("trial", "steps", ledger.sweep.objective, "values"):
        table.add_column(name)
    for job in jobs:
        trial = job.attempt.trial
        done, wanted = task.steps(trial, job.attempt.values)
        measured = task.measured(trial, ledger.sweep.objective)
        last = f"{measured[max(measured)]:.4g}" if measured else "-"
        table.add_row(str(trial), f"{done}/{wanted}", last, described(job.attempt.values))
    return Group(Text(summary(standings, ledger.sweep, slots)), table)
