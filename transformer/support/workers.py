"""Worker processes for Python code, which would otherwise take turns with the train step, and
worker threads.

Processes are spawned, since forking is unsafe after JAX has started threads. A spawned process
imports the main module, so a command imports JAX only inside its `main`.
"""

import collections
import contextlib
import multiprocessing
import os
import pickle
import queue
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from transformer.support import runtime
from transformer.support.errors import UserError

SECONDS_AFTER_TERMINATION = 10  # in which a run can take what it waits for


def num_workers(wanted: int) -> int:
    """Returns `wanted`, or the number of cores available to this process if it is 0."""
    return wanted or (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )


def map_ordered(function: Callable, arguments: Iterable, workers: int) -> Iterator:
    """Yields `function(argument)` in order, from processes or, with 1, from this one.

    Raises UserError if one dies.
    """
    if workers == 1:
        yield from map(function, arguments)
        return
    pool = Pool(function, workers)
    ahead = collections.deque()
    with contextlib.closing(pool), pool.death_reported():
        for argument in arguments:
            ahead.append(pool.submit(argument))
            if len(ahead) > workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


class Pool:
    """At most `workers` processes that compute `function(*arguments)` for the threads of this one.

    A process starts when a call finds none idle. A call raises the exceptions of the function,
    UserError if a process has died, after which the pool cannot be used any more, and RuntimeError
    if the pool has been closed.
    """

    def __init__(self, function: Callable, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.workers = workers
        self._executor = ProcessPoolExecutor(
            workers, context, initializer=_start, initargs=(pickle.dumps(function),)
        )

    def __call__(self, *arguments: Any) -> Any:
        with self.death_reported():
            return self.submit(*arguments).result()

    def submit(self, *arguments: Any) -> Future:
        # A process that starts here inherits the mask: Ctrl-C reaches only the main process, which
        # ends its workers.
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return self._executor.submit(_call, *arguments)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)

    def close(self) -> None:
        """Ends the processes after the calls that they compute.

        Calls that wait for a process are cancelled.
        """
        self._executor.shutdown(cancel_futures=True)

    @contextlib.contextmanager
    def death_reported(self) -> Iterator[None]:
        """Turns the error of a process that died into a UserError."""
        try:
            yield
        except BrokenProcessPool as error:
            died = f"data.workers: one of {self.workers} worker processes died; if memory ran out, choose fewer"
            raise UserError(died) from error


def _start(pickled_function: bytes) -> None:
    """Prepares a worker process: a session first, then the function, whose modules take most of the
    start.
    """
    global _function
    # Linux divides busy cores equally among sessions (autogroup): in the command's, all workers
    # share one part.
    os.setsid()
    os.dup2(2, 1)  # standard output has the command's results only

    # if the parent is killed; otherwise the executor ends this process
    def exit_with_parent() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    # Slurm signals all processes; the run needs batches to end its step and save
    def exit_later(*_: object) -> None:
        timer = threading.Timer(SECONDS_AFTER_TERMINATION, os._exit, (1,))
        timer.daemon = True
        timer.start()

    for number in runtime.TERMINATIONS:
        signal.signal(number, exit_later)
    _function = pickle.loads(pickled_function)
    threading.Thread(target=exit_with_parent, daemon=True).start()  # not while this one imports


def _call(*arguments: Any) -> Any:
    return _function(*arguments)


def merge(streams: Sequence[Iterator]) -> Iterator:
    """Yields the items of all streams as they come, each from a thread.

    The error of one ends all of them.
    """
    if len(streams) <= 1:
        for stream in streams:
            yield from stream
        return
    received = queue.SimpleQueue()
    stopped = threading.Event()

    def read(stream: Iterator) -> None:
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


def call_all(
    jobs: Sequence[Callable[[], object]], after_job: Callable[[], None] = lambda: None
) -> None:
    """Calls the jobs in threads, and `after_job` after each in this one.

    After the first error no job starts.
    """
    with ThreadPoolExecutor(num_workers(0)) as pool:
        for _ in pool.map(lambda job: job(), jobs):
            after_job()
