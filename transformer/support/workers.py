"""Worker processes for Python code, and worker threads.

In the process of a run, Python code would take turns with the train step. Processes are spawned,
since forking is unsafe after JAX has started threads. A spawned process imports the main module, so
a command imports JAX only inside its `main`.
"""

import collections
import contextlib
import multiprocessing
import os
import pickle
import queue
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from transformer.support import runtime
from transformer.support.errors import UserError

# A run can still take the results that it waits for during this time.
SECONDS_AFTER_TERMINATION = 10


def num_workers(count: int) -> int:
    """Returns `count`, or the number of cores available to this process if it is 0."""
    if count:
        return count
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_ordered(function: Callable, arguments: Iterable, workers: int) -> Iterator:
    """Yields `function(argument)` in order, computed in `workers` processes.

    One worker is this process. Raises UserError if a process dies.
    """
    if workers == 1:
        yield from map(function, arguments)
        return
    # A few results are computed ahead, but not all arguments are read at once.
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

    A process starts when a call finds none idle. A call raises the exceptions of the function, and
    RuntimeError if the pool has been closed. It raises UserError if a process has died; then the
    pool cannot be used any more.
    """

    def __init__(self, function: Callable, workers: int) -> None:
        # The function is sent to a process once, and not with each call.
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
        """Ends the processes after their current calls, and cancels the other calls."""
        self._executor.shutdown(cancel_futures=True)

    @contextlib.contextmanager
    def death_reported(self) -> Iterator[None]:
        """Turns the error of a process that died into a UserError."""
        try:
            yield
        except BrokenProcessPool as error:
            raise UserError(
                f"data.workers: one of {self.workers} worker processes died; "
                "if memory ran out, choose fewer"
            ) from error


_function: Callable  # that this worker process computes


def _start(pickled_function: bytes) -> None:
    """Prepares a worker process, and loads the function, which takes most of the time."""
    global _function
    # Linux divides busy cores equally among sessions (autogroup). Without a session for each
    # worker, all workers would share the part of the command.
    os.setsid()
    # Standard output only has the results of the command.
    os.dup2(2, 1)

    def exit_with_parent() -> None:
        # The executor ends this process, unless the parent is killed.
        parent = multiprocessing.parent_process()
        assert parent is not None  # this is a process of the pool
        parent.join()
        os._exit(1)

    def exit_later(*_: object) -> None:
        # Slurm signals all processes, but the run needs batches to end its step and save.
        timer = threading.Timer(SECONDS_AFTER_TERMINATION, os._exit, (1,))
        timer.daemon = True
        timer.start()

    for number in runtime.TERMINATIONS:
        signal.signal(number, exit_later)
    _function = pickle.loads(pickled_function)
    # The thread starts after the imports of the function.
    threading.Thread(target=exit_with_parent, daemon=True).start()


def _call(*arguments: Any) -> Any:
    return _function(*arguments)


def merge(streams: Sequence[Iterator]) -> Generator:
    """Yields the items of all streams as they come, with a thread for each stream.

    The error of a stream ends all of them.
    """
    if len(streams) <= 1:
        for stream in streams:
            yield from stream
        return
    # All threads put their items into one queue.
    received = queue.SimpleQueue()
    stopped = threading.Event()

    def read(stream: Iterator) -> None:
        for item in stream:
            received.put(item)
            if stopped.is_set():
                break

    with ThreadPoolExecutor(len(streams)) as pool:
        try:
            # A finished stream puts its Future into the queue, after its items.
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
    """Calls the jobs in threads, and `after_job` in this thread after each job.

    After the first error no job starts.
    """
    # XLA compiles outside Python's global lock.
    with ThreadPoolExecutor(num_workers(0)) as pool:
        for _ in pool.map(lambda job: job(), jobs):
            after_job()
