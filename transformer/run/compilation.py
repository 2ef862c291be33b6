"""Compilation of a run's programs, several at a time."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from absl import logging

from transformer.data.corpus.workers import num_workers

LOG_SECONDS = 30.0  # between log lines while programs are being compiled
MIN_LOGGED_SECONDS = 1.0  # programs that are compiled already, as after a rollback, are not worth a line


def compile_all(
    jobs: Sequence[Callable[[], object]], is_interrupted: Callable[[], bool], report: Callable[[int, int], None]
) -> bool:
    """Calls the jobs, each of which compiles one program, in as many threads as there are cores.

    XLA compiles without Python's global lock, so only tracing is serial. Jobs start in their order and the first error
    in that order is raised, so the program that needs most memory belongs first.

    Args:
      is_interrupted: called once after each job, in this thread. If it returns True, no further job starts.
      report: called with the number of finished jobs and that of all jobs.

    Returns:
      False if interrupted.
    """
    started = logged = time.perf_counter()
    report(0, len(jobs))
    with ThreadPoolExecutor(num_workers(0), "compile") as pool:
        try:
            futures = [pool.submit(job) for job in jobs]
            for number, future in enumerate(futures, start=1):
                future.result()
                report(number, len(jobs))
                if is_interrupted():
                    return False
                now = time.perf_counter()
                if now - logged >= LOG_SECONDS and number < len(jobs):
                    logged = now
                    logging.info("Compiled %d of %d programs in %.0f s.", number, len(jobs), now - started)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    if time.perf_counter() - started >= MIN_LOGGED_SECONDS:
        logging.info("Compiled %d programs in %.0f s.", len(jobs), time.perf_counter() - started)
    return True
