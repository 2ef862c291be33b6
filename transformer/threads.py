"""Threads that call functions, and threads that read several streams."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from transformer.data.corpus.workers import num_workers

Item = TypeVar("Item")


def merge(streams: Sequence[Iterator[Item]]) -> Iterator[Item]:
    """Yields the items of all streams as they come. Each stream has a thread; a single one needs none.

    An exception in a stream is raised here. It, or closing this iterator, ends the other streams after their next item.
    """
    if len(streams) <= 1:
        for stream in streams:
            yield from stream
        return
    received, stopped = queue.SimpleQueue(), threading.Event()

    def read(stream: Iterator[Item]) -> None:
        for item in stream:
            received.put(item)
            if stopped.is_set():
                break

    with ThreadPoolExecutor(len(streams)) as pool:
        try:
            for stream in streams:
                pool.submit(read, stream).add_done_callback(received.put)
            running = len(streams)
            while running:
                item = received.get()
                if isinstance(item, Future):
                    item.result()  # raises the exception of the stream
                    running -= 1
                else:
                    yield item
        finally:
            stopped.set()


def call_all(jobs: Sequence[Callable[[], object]], after_job: Callable[[], None] = lambda: None) -> None:
    """Calls the jobs in as many threads as there are cores.

    Jobs start in their order, and the first error in that order is raised. `after_job` is called once after each job,
    in this thread. After an error no further job starts.
    """
    with ThreadPoolExecutor(num_workers(0)) as pool:
        try:
            for future in [pool.submit(job) for job in jobs]:
                future.result()
                after_job()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
