"""Running of a sweep: its study, and the workers of one process."""

import concurrent.futures
import os
import threading

from absl import logging
from optuna.trial import TrialState

from scripts.sweeping import child
from scripts.sweeping.description import Sweep
from scripts.sweeping.study import SweepStudy
from scripts.sweeping.tasks import Task, check_values
from scripts.sweeping.worker import Starter, Worker
from transformer.support import files


def run_sweep(
    sweep: Sweep, task: Task, url: str, jobs: int, retry_failed: bool, start: Starter | None = None
) -> SweepStudy:
    """Runs the trials that are not complete, `jobs` at a time, and returns the study.

    Raises UserError if a value is invalid or the folder holds another sweep, and KeyboardInterrupt
    once the trials of an interrupted process have saved and are enqueued again.
    """
    check_values(sweep, task)
    folder = task.folder
    files.make_folder(folder.path, "--workdir")
    folder.check_own()
    with folder.lock():
        record = folder.describe(sweep, task.identity)
        study = SweepStudy(url, record["study"], sweep, folder.lock)
        if folder.record.exists():
            study.load()  # raises an error if the storage does not have it
        study.create()
        files.write_json(folder.record, record)
    if retry_failed:
        study.retry_failed()
    elif failed := [
        str(number) for number, trial in enumerate(study.trials()) if trial.state == TrialState.FAIL
    ]:
        logging.warning(
            "Failed earlier: trials %s. --retry_failed runs them again.", ", ".join(failed)
        )
    run_trials(study, task, jobs, start)
    return study


def run_trials(study: SweepStudy, task: Task, jobs: int, start: Starter | None = None) -> None:
    """Runs trials, `jobs` at a time, until no process has any left.

    `start` takes the place of `child.start`, and its trials share all devices and processors.
    """
    shared = [(dict(os.environ), set())] * jobs
    stop = threading.Event()
    resources = shared if start else zip(_environments(jobs), _processors(jobs), strict=True)
    workers = [Worker(study, task, *resource, stop, start or child.start) for resource in resources]
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
    for future in futures:
        future.result()


def _environments(jobs: int) -> list[dict[str, str]]:
    """Returns the environment of each worker's children: they share the GPUs of this one, or their
    memory.
    """
    devices = [device for device in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if device]
    # By default a process takes three quarters of the memory of its GPUs.
    shared = (
        {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / jobs:.3f}"}
        if jobs > max(len(devices), 1)
        else {}
    )
    if not devices:
        return [shared | os.environ] * jobs
    return [
        shared | os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(part)}
        for part in _divided(devices, jobs)
    ]


def _processors(jobs: int) -> list[set[int]]:
    """Returns the processors of each worker's children; none where the system cannot reserve
    processors.

    On two cores, two trials that both use two threads take 1.5 times as long as with one core each.
    """
    if not hasattr(os, "sched_getaffinity"):
        return [set()] * jobs
    return [set(part) for part in _divided(sorted(os.sched_getaffinity(0)), jobs)]


def _divided(items: list, jobs: int) -> list[list]:
    """Divides the items equally among the workers.

    Each worker gets all of them if they are fewer than the workers.
    """
    size = len(items) // jobs
    return [items[slot * size : (slot + 1) * size] if size else items for slot in range(jobs)]
