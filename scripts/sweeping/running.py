"""The study of a sweep and the workers of one process."""

import concurrent.futures
import os
import threading

from absl import logging
from optuna.trial import TrialState

from scripts.sweeping import child
from scripts.sweeping.description import Sweep
from scripts.sweeping.study import SweepStudy
from scripts.sweeping.tasks import Task, check_values
from scripts.sweeping.worker import Starter, TrialWorker
from transformer.support import files


def run_sweep(
    sweep: Sweep, task: Task, url: str, jobs: int, retry_failed: bool, start: Starter | None = None
) -> SweepStudy:
    """Runs the trials that are not complete, `jobs` at a time, and returns the study.

    Raises:
      UserError: a value is invalid, or the folder holds another sweep.
      KeyboardInterrupt: the process was interrupted. Its trials have saved and are enqueued again.
    """
    # Nothing is written if a value is invalid.
    check_values(sweep, task)

    folder = task.folder
    files.make_folder(folder.path, "--workdir")
    folder.check_ownership()
    # The record is written last: without it the same command makes a new study.
    with folder.lock():
        record = folder.describe(sweep, task.identity)
        study = SweepStudy(url, record["study"], sweep, folder.lock)
        if folder.record.exists():
            study.load()  # raises UserError if the storage does not have the study
        study.create()
        files.write_json(folder.record, record)

    if retry_failed:
        study.retry_failed()
    else:
        states = [trial.state for trial in study.trials()]
        failed = [str(number) for number, state in enumerate(states) if state == TrialState.FAIL]
        if failed:
            logging.warning(
                "Failed earlier: trials %s. --retry_failed runs them again.", ", ".join(failed)
            )

    run_trials(study, task, jobs, start)
    return study


def run_trials(study: SweepStudy, task: Task, jobs: int, start: Starter | None = None) -> None:
    """Runs trials, `jobs` at a time, until no process has any left.

    `start` replaces `child.start`. Its trials share all devices and processors.
    """
    if start is None:
        start = child.start
        resources = zip(_environments(jobs), _processors(jobs), strict=True)
    else:
        resources = [(dict(os.environ), set())] * jobs

    stop = threading.Event()
    workers = [
        TrialWorker(study, task, environment, processors, stop, start)
        for environment, processors in resources
    ]

    # The first error or an interruption stops all workers. Their trials save and are enqueued
    # again.
    task.folder.logs.mkdir(exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(worker.run) for worker in workers]
        try:
            concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_EXCEPTION)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                "interrupted; the same command continues with the remaining trials"
            ) from None
        finally:
            stop.set()
    # This raises the error of a worker.
    for future in futures:
        future.result()


def _environments(jobs: int) -> list[dict[str, str]]:
    """Returns the environments of the workers' child processes, which share our GPUs."""
    devices = [device for device in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if device]
    environment = dict(os.environ)
    if jobs > max(len(devices), 1):
        # By default a process takes three quarters of the memory of its GPUs.
        environment.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{0.9 / jobs:.3f}")
    if not devices:
        return [environment] * jobs
    return [
        environment | {"CUDA_VISIBLE_DEVICES": ",".join(part)} for part in _divide(devices, jobs)
    ]


def _processors(jobs: int) -> list[set[int]]:
    """Returns the processors of the workers' child processes.

    On two cores, two trials that both use two threads take 1.5 times as long as with one core each.
    The sets are empty if the operating system cannot reserve processors.
    """
    if not hasattr(os, "sched_getaffinity"):
        return [set()] * jobs
    return list(map(set, _divide(sorted(os.sched_getaffinity(0)), jobs)))


def _divide(items: list, jobs: int) -> list[list]:
    """Divides the items equally among the workers.

    Each worker gets all items if there are more workers than items.
    """
    size = len(items) // jobs
    if size == 0:
        return [items] * jobs
    return [items[slot * size : (slot + 1) * size] for slot in range(jobs)]
