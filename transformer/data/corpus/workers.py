"""Spreads work over processes that import nothing but what the work needs.

`multiprocessing` does not fit here: its fork is unsafe once JAX has started threads, and its spawn imports the main
module, JAX and all, anew in every process. So this module is itself the program that a worker runs: a loop that
unpickles arguments from standard input and pickles results to standard output.
"""

import contextlib
import os
import pickle
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from transformer.errors import UserError

A = TypeVar("A")
R = TypeVar("R")


def available(wanted: int) -> int:
    """How many worker processes to use: `wanted`, or if that is 0 as many as this process has cores."""
    if wanted:
        return wanted
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_ordered(function: Callable[[A], R], arguments: Iterable[A], workers: int) -> Iterator[R]:
    """Yields `function(argument)` for each argument, in order, computed by `workers` processes; with 1, by this one.

    Arguments are taken only a little ahead of the results, so memory stays bounded. What the function raises in
    a worker is raised here.
    """
    if workers == 1:
        yield from map(function, arguments)
        return
    processes = [_Process(function) for _ in range(workers)]
    idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
    for process in processes:
        idle.put(process)

    def call(argument: A) -> R:
        process = idle.get()
        try:
            return process.call(argument)
        finally:
            idle.put(process)

    threads = ThreadPoolExecutor(workers)
    pending: deque[Future[R]] = deque()
    try:
        for argument in arguments:
            pending.append(threads.submit(call, argument))
            if len(pending) >= 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()  # ends the calls that are waiting for it
        threads.shutdown()
        for process in processes:
            process.close()


class _Process:
    """One worker, sent the function with its first argument."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function: Callable[[Any], Any] | None = function
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "transformer.data.corpus.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # Ctrl-C is this process's to handle: it ends its workers itself
        )

    def call(self, argument: Any) -> Any:
        try:
            if self._function is not None:
                pickle.dump(self._function, self._popen.stdin)
                self._function = None
            pickle.dump(argument, self._popen.stdin)
            self._popen.stdin.flush()
            succeeded, result = pickle.load(self._popen.stdout)
        except (EOFError, BrokenPipeError) as error:
            code = self._popen.wait()
            raise UserError(
                f"data.workers: a worker process died (exit code {code}); if memory ran out, lower it"
            ) from error
        if not succeeded:
            raise result
        return result

    def kill(self) -> None:
        self._popen.kill()

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # what it has not read is lost, and meant to be
            self._popen.stdin.close()
        self._popen.stdout.close()
        self._popen.wait()


def _serve() -> None:
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # so that nothing a library prints can end up among the results
    arguments = sys.stdin.buffer
    function = pickle.load(arguments)
    while True:
        try:
            argument = pickle.load(arguments)
        except EOFError:
            return
        try:
            answer = (True, function(argument))
        except Exception as error:  # whatever it is, it belongs to the process that asked
            answer = (False, error)
        pickle.dump(answer, results, protocol=pickle.HIGHEST_PROTOCOL)
        results.flush()


if __name__ == "__main__":
    _serve()
