"""Worker processes that import only what their work needs.

`multiprocessing` does not fit: forking is unsafe after JAX has started threads, and spawned processes import the main
module, and with it JAX, again. This module is itself the program of a worker: a loop that reads pickled arguments from
standard input and writes pickled results to standard output.
"""

import contextlib
import itertools
import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from transformer.errors import UserError

A = TypeVar("A")
R = TypeVar("R")


def num_workers(wanted: int) -> int:
    """Returns `wanted`, or the number of cores available to this process if it is 0."""
    if wanted:
        return wanted
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_ordered(function: Callable[[A], R], arguments: Iterable[A], workers: int) -> Iterator[R]:
    """Yields `function(argument)` for each argument, in order, from several worker processes or, with 1, from this one.

    Each process has one argument at a time, so the memory is bounded. Exceptions of the function are raised here.

    Raises:
      UserError: a process died.
    """
    if workers == 1:
        yield from map(function, arguments)
        return
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(_Worker(function)) for _ in range(workers)]
        remaining, busy = iter(arguments), deque()
        for worker, argument in zip(idle, remaining, strict=False):
            worker.send(argument)
            busy.append(worker)
        while busy:
            worker = busy.popleft()
            result = worker.receive()
            for argument in itertools.islice(remaining, 1):
                worker.send(argument)  # before yielding, so that it works while the caller does
                busy.append(worker)
            yield result


class Pool:
    """At most `workers` processes that compute `function(argument)` for the threads of this one.

    A process starts when a call finds none idle. Exceptions of the function are raised in the calling thread.

    Raises:
      UserError: the process that computed the call died.
      RuntimeError: the pool was closed before a process took the call.
    """

    def __init__(self, function: Callable[[A], R], workers: int) -> None:
        self._function, self._workers = function, workers
        self._started, self._idle, self._closed = [], [], False
        self._changed = threading.Condition()

    def __call__(self, argument: A) -> R:
        worker = self._take()
        try:
            worker.send(argument)
            return worker.receive()
        finally:
            with self._changed:
                self._idle.append(worker)
                self._changed.notify()
                if self._closed:
                    self._close_idle()

    def close(self) -> None:
        """Ends the processes, also those that compute. Later calls, and those that wait for a process, raise."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            for worker in self._started:
                worker.kill()
            self._close_idle()

    def _take(self) -> "_Worker":
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._idle or len(self._started) < self._workers)
            if self._closed:
                raise RuntimeError("the pool of worker processes is closed")
            if self._idle:
                return self._idle.pop()
            self._started.append(_Worker(self._function))
            return self._started[-1]

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()


class _Worker:
    """A worker process, which computes the function for one argument at a time."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._unsent = [function]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "transformer.data.corpus.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # Ctrl-C reaches only the main process, which kills its workers
        )

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def kill(self) -> None:
        """Ends the process. A thread that waits for its result gets a UserError."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Ends the process and closes its pipes, which no other thread may use."""
        self.kill()
        self._process.communicate()

    def send(self, argument: Any) -> None:
        with self._death_reported():
            for value in (*self._unsent, argument):
                pickle.dump(value, self._process.stdin, pickle.HIGHEST_PROTOCOL)
            self._process.stdin.flush()
        self._unsent.clear()

    def receive(self) -> Any:
        with self._death_reported():
            succeeded, result = pickle.load(self._process.stdout)
        if not succeeded:
            raise result
        return result

    @contextlib.contextmanager
    def _death_reported(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
            code = self._process.wait()
            raise UserError(
                f"data.workers: a worker process died (exit code {code}); if memory ran out, lower it"
            ) from error


def _serve() -> None:
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print goes to standard error, so that it cannot corrupt the results
    function = pickle.load(sys.stdin.buffer)
    while True:
        argument = pickle.load(sys.stdin.buffer)
        try:
            answer = (True, function(argument))
        except Exception as error:
            answer = (False, error)
        pickle.dump(answer, results, pickle.HIGHEST_PROTOCOL)
        results.flush()


if __name__ == "__main__":
    try:
        _serve()
    except (EOFError, BrokenPipeError):
        os._exit(0)  # the main process has ended; an ordinary exit would flush the results and complain
