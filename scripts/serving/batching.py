"""A queue that gathers the work of concurrent requests for one model, and the thread that does it."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from transformer.support.errors import UserError

EMA = 0.5  # weight of the newest batch in the number of jobs that the next one waits for
SHARE = 8  # jobs of a request that go before the requests which come a batch later


class QueueFull(Exception):
    """The queue has no place for all jobs of a request."""


class Work(NamedTuple):
    """A kind of work: a function from a list of arguments to a list of results, and the most
    arguments of a call.
    """

    function: Callable[[list[Any]], Sequence[Any]]
    capacity: int


class Job(NamedTuple):
    kind: str
    argument: Any
    turn: int
    future: Future


class Batcher:
    """A queue for one model. Jobs of one kind that wait together are computed together, the
    earliest turns first.

    The first jobs of a request have their turn in the next batch, and every further `SHARE` of them
    a batch later. So short requests pass a long one, which they cannot delay for ever.

    An idle queue computes a job at once. A busy one waits for as many jobs as in the last batches,
    at most `wait_seconds` after the first: clients send their next requests when they have the
    answers of a batch. A job whose future was cancelled leaves the queue. If a batch fails, its
    jobs are computed one by one, so that only those at fault fail.

    Attributes:
      kinds: the kinds of work, by name.
      report: is called after each batch with its kind, its jobs relative to the most, and its
      seconds.
    """

    def __init__(
        self,
        kinds: Mapping[str, Work],
        wait_seconds: float,
        max_jobs: int,
        report: Callable[..., None] = lambda *_: None,
    ) -> None:
        self.kinds = kinds
        self.wait_seconds = wait_seconds
        self.max_jobs = max_jobs
        self.report = report
        self._jobs = []
        self._batches = 0
        self._changed = threading.Condition()
        self._is_closed = False
        self._expected = 1.0
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    async def compute(self, kind: str, arguments: Sequence[Any]) -> list[Any]:
        """Returns the results for the arguments.

        Raises UserError if the queue is too short for them, QueueFull if it is now, or the first
        exception of the work.
        """
        if len(arguments) > self.max_jobs:
            raise UserError(
                f"the text has {len(arguments)} sentences, must have at most {self.max_jobs}"
            )
        jobs = [
            Job(kind, argument, self._batches + i // SHARE, Future())
            for i, argument in enumerate(arguments)
        ]
        with self._changed:
            if len(self._jobs) + len(jobs) > self.max_jobs:
                self._jobs = [job for job in self._jobs if not job.future.cancelled()]
                if len(self._jobs) + len(jobs) > self.max_jobs:
                    raise QueueFull
            # stable, so that equal turns keep order
            self._jobs = sorted(self._jobs + jobs, key=lambda job: job.turn)
            self._changed.notify()
        futures = [asyncio.wrap_future(job.future) for job in jobs]
        try:
            return await asyncio.gather(*futures)  # if it is cancelled, so are the futures
        except Exception:
            for future in futures:
                future.cancel()
            raise

    def close(self) -> None:
        """Ends the thread after the jobs in the queue."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while jobs := self._gather():
            start = time.perf_counter()
            self._compute(jobs)
            kind = jobs[0].kind
            self.report(kind, len(jobs) / self.kinds[kind].capacity, time.perf_counter() - start)

    def _gather(self) -> list[Job]:
        """Returns the next jobs, of one kind; [] after the last one of a closed queue."""
        wanted = min(round(self._expected), self.max_jobs)
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._jobs or self._is_closed)
                self._changed.wait_for(
                    lambda: len(self._jobs) >= wanted or self._is_closed, self.wait_seconds
                )
                taken = []
                others = []
                for job in self._jobs:
                    kind = taken[0].kind if taken else job.kind
                    if job.kind != kind or len(taken) == self.kinds[kind].capacity:
                        others.append(job)
                    elif job.future.set_running_or_notify_cancel():
                        taken.append(job)
                self._jobs = others
                self._batches += 1
                if taken or self._is_closed:
                    self._expected += EMA * (len(taken) - self._expected)
                    return taken

    def _compute(self, jobs: Sequence[Job]) -> None:
        try:
            results = self.kinds[jobs[0].kind].function([job.argument for job in jobs])
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
            else:
                for job in jobs:
                    self._compute([job])
        else:
            for job, result in zip(jobs, results, strict=True):
                job.future.set_result(result)
