"""A queue for one model. It gathers the work of concurrent requests into batches."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from transformer.support.errors import UserError

EMA = 0.5  # weight of the newest batch in the number of jobs that the next one waits for
SHARE = 8  # jobs of a request in each turn


class QueueFull(Exception):
    """The queue has no place for all jobs of a request."""


class Work(NamedTuple):
    """A kind of work.

    Attributes:
      function: returns a list of results for a list of arguments.
      capacity: the largest number of arguments of a call.
    """

    function: Callable[[list[Any]], Sequence[Any]]
    capacity: int


class Job(NamedTuple):
    kind: str
    argument: Any
    turn: int
    future: Future


class Batcher:
    """A queue whose thread computes jobs in batches. All jobs of a batch are of one kind.

    Jobs with earlier turns come first. The first `SHARE` jobs of a request have their turn in the
    next batch, the next `SHARE` jobs a batch later, and so on. So short requests pass a long one,
    and cannot delay it for ever.

    An idle queue computes a job at once. A busy queue waits for as many jobs as its last batches
    had, because clients send their next requests when they have the answers of a batch. It waits at
    most `wait_seconds` after the first job. A job leaves the queue if its future is cancelled. If a
    batch fails, its jobs are computed one by one, so that only the jobs at fault fail.

    Attributes:
      kinds: the kinds of work, by name.
      report: a function that is called after each batch with its kind, its number of jobs divided
        by the capacity, and its seconds.
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

        Raises UserError if the queue can never hold so many jobs, QueueFull if it cannot hold them
        now, or the first exception of the work.
        """
        if len(arguments) > self.max_jobs:
            raise UserError(
                f"the text has {len(arguments)} sentences, must have at most {self.max_jobs}"
            )
        # Turn N is that of the N-th batch of this queue.
        jobs = [
            Job(kind, argument, self._batches + i // SHARE, Future())
            for i, argument in enumerate(arguments)
        ]
        with self._changed:
            if len(self._jobs) + len(jobs) > self.max_jobs:
                # Cancelled jobs leave only now, or when their turn comes.
                self._jobs = [job for job in self._jobs if not job.future.cancelled()]
                if len(self._jobs) + len(jobs) > self.max_jobs:
                    raise QueueFull
            # The sort is stable, so jobs of the same turn keep their order.
            self._jobs = sorted(self._jobs + jobs, key=lambda job: job.turn)
            self._changed.notify()
        futures = [asyncio.wrap_future(job.future) for job in jobs]
        try:
            # If this call is cancelled, so are the futures.
            return await asyncio.gather(*futures)
        except Exception:
            # The request has failed, so its other results are not needed.
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
        while jobs := self._next_batch():
            start = time.perf_counter()
            self._compute(jobs)
            kind = jobs[0].kind
            self.report(kind, len(jobs) / self.kinds[kind].capacity, time.perf_counter() - start)

    def _next_batch(self) -> list[Job]:
        """Removes the next jobs from the queue; returns [] after the last one of a closed queue."""
        expected = min(round(self._expected), self.max_jobs)
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._jobs or self._is_closed)
                # More jobs of concurrent requests may follow the first one.
                self._changed.wait_for(
                    lambda: len(self._jobs) >= expected or self._is_closed, self.wait_seconds
                )
                # The first job decides the kind of the batch.
                batch = []
                remaining = []
                for job in self._jobs:
                    kind = batch[0].kind if batch else job.kind
                    if job.kind != kind or len(batch) == self.kinds[kind].capacity:
                        remaining.append(job)
                    # A cancelled job is in neither list.
                    elif job.future.set_running_or_notify_cancel():
                        batch.append(job)
                self._jobs = remaining
                self._batches += 1
                if batch or self._is_closed:
                    self._expected += EMA * (len(batch) - self._expected)
                    return batch

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
