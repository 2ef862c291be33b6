"""Trials that train together: threads of this process that share one program (`stack`)."""

import contextlib
import dataclasses
import logging
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

import jax

from scripts.sweeping.description import Sweep, extremes
from scripts.sweeping.stack import ARGUMENTS, TRACED, WEIGHT_DECAY, TrialStack
from transformer.config import cli, loading
from transformer.config.types import Config
from transformer.data.batches.epoch_plan import Bucket
from transformer.data.batches.loader import PLANS
from transformer.hooks.endings import Interruption
from transformer.run import checks, loop
from transformer.run.dry_run import mebibytes
from transformer.run.preparation import Run, open_workdir, prepare
from transformer.support import logs
from transformer.support.errors import UserError, memory_advice
from transformer.training.accumulation import update_kinds
from transformer.training.memory import bytes_used


def check(config: Config, sweep: Sweep, jobs: int) -> None:
    """Raises UserError if the trials cannot share one program.

    They may differ in some numbers only, and their batches need one shape.
    """
    for key in sweep.keys:
        if key not in ARGUMENTS + TRACED:
            raise UserError(
                f"--together: {key} varies, but only {', '.join(ARGUMENTS + TRACED)} may vary"
            )

    # All trials take a step together, so their batches have one shape.
    if config.batch.plan != "packed" and config.batch.max_buckets != 1:
        raise UserError("--together: needs batches of one shape; set config.batch.plan=packed")

    if update_kinds(config.training) != [False]:
        raise UserError(
            "--together: needs one batch for each update; set config.training.accumulation=1"
        )

    if sweep.space and len(sweep.trials) <= jobs:
        raise UserError(
            "--together: a search needs results to choose values; "
            "give --jobs=N, less than its trials"
        )

    # Without weight decay the optimizer has other operations.
    if WEIGHT_DECAY in sweep.keys:
        if sweep.space:
            weight_decays = extremes(sweep.space[WEIGHT_DECAY])
        else:
            default = config.optimizer.weight_decay
            weight_decays = [trial.get(WEIGHT_DECAY, default) for trial in sweep.trials]
        if 0.0 in weight_decays:
            raise UserError(
                f"--together: {WEIGHT_DECAY}=0 needs another program than other trials; "
                "give them 1e-12 instead"
            )

    if jax.device_count() > 1:
        raise UserError("--together: trains on one device; name one, as in CUDA_VISIBLE_DEVICES=0")


def estimate_memory(config: Config, sweep: Sweep, folder: Path) -> str:
    """Returns how many trials fit in the memory of the device.

    Compiles the programs of one trial and of two trials.
    """
    # One value of each key is enough: all trials run the same program.
    values = {key: extremes(sweep.distribution(key))[-1] for key in sweep.keys}
    config = loading.with_values(config, values)
    with open_workdir(folder, config, is_dry_run=True) as (workdir, config):
        run = prepare(config, workdir)
        lengths = run.corpus.all_pairs().lengths
        buckets = PLANS[config.batch.plan].choose_shapes(lengths, config.batch)
        one, two = [_compiled_bytes(size, sweep.keys, run, buckets) for size in (1, 2)]

    statistics = jax.local_devices()[0].memory_stats() or {}
    memory = statistics.get("bytes_limit")
    if not memory:  # CPUs do not have the statistics
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    # The memory grows linearly with the number of trials.
    more = two - one
    count = max(0, 1 + (memory - one) // more)
    return (
        f"One trial needs {mebibytes(one)}, each further one {mebibytes(more)}, and validation "
        f"more: at most {count} fit in {mebibytes(memory)}."
    )


def _compiled_bytes(size: int, keys: Sequence[str], run: Run, buckets: Sequence[Bucket]) -> int:
    """Returns the bytes on the device while the step of `size` trials runs."""
    stack = TrialStack(size, keys)
    stack.enter(size)
    step = stack.member_step(size, run)
    compile_step, _ = step.compilations(run.initializer.abstract_state, buckets)
    return bytes_used(compile_step().memory_analysis())


@contextlib.contextmanager
def log_of_this_thread(path: Path) -> Iterator[None]:
    """Redirects the log lines of this thread from standard error to the end of a file."""
    # The first handler of the root logger writes to standard error.
    root = logging.getLogger()
    thread = threading.current_thread()
    handler = logs.file_handler(path)

    def is_other(record: logging.LogRecord) -> bool:
        return threading.current_thread() is not thread

    handler.addFilter(lambda record: not is_other(record))
    root.handlers[0].addFilter(is_other)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.handlers[0].removeFilter(is_other)
        with contextlib.suppress(OSError):  # the disk is full
            handler.close()


class Stop(Interruption):
    """An interruption that another thread requests.

    A trial holds the lock `turn` while it compiles its programs and starts to save.
    """

    def __init__(self, requested: threading.Event, turn: threading.Lock) -> None:
        super().__init__()
        self.requested = requested
        self.turn = turn
        self.compiling = contextlib.ExitStack()

    def __enter__(self) -> "Stop":
        return self

    def __exit__(self, *_: object) -> None:
        self.compiling.close()

    def on_start(self, progress: object) -> None:
        self.compiling.enter_context(self.turn)
        self.poll()

    def during(self, activity: str) -> AbstractContextManager:
        self.compiling.close()
        return self.turn if activity == "saving" else super().during(activity)

    def stop_requested(self) -> bool:
        return self.requested.is_set()


class TrialThread(threading.Thread, AbstractContextManager):
    """A trial in a thread.

    It has the arguments of `child.start`, and the methods of the process that `child.start`
    returns.
    """

    def __init__(
        self, stack: TrialStack, module: str, flags: Sequence[str], stderr: IO[bytes], **_: object
    ) -> None:
        super().__init__(daemon=True)
        # The flags are the ones of `TrainingTask.command`.
        values = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
        self.config = values["config"]
        self.workdir = Path(values["workdir"])
        self.log = Path(stderr.name)
        self.stack = stack
        self.requested = threading.Event()
        self.returncode = 1
        stack.enter(self)
        self.start()

    def __exit__(self, *_: object) -> None:
        self.join()

    def poll(self) -> int | None:
        return None if self.is_alive() else self.returncode

    def terminate(self) -> None:
        self.requested.set()

    def wait(self, timeout: float) -> None:
        self.join(timeout)
        if self.is_alive():
            raise subprocess.TimeoutExpired(self.name, timeout)

    def run(self) -> None:
        try:
            with log_of_this_thread(self.log):
                self.returncode = cli.exit_code(self._train, "config")
        finally:
            self.stack.leave(self)

    def _train(self) -> None:
        # No watchdog: it has one timer for the process, and a trial may wait long while other
        # trials prepare.
        config = loading.load_file(self.config, [("training.stall_seconds", "0")])
        with (
            open_workdir(self.workdir, config) as (workdir, config),
            log_of_this_thread(workdir.log),
        ):
            with self.stack.turn:
                if self.requested.is_set():
                    return
                run = prepare(config, workdir)
                step = self.stack.member_step(self, run)
                run = dataclasses.replace(run, train_step=step)
            checks.record_start(workdir, config)
            with memory_advice("lower --jobs; --plan tells how many trials fit"):
                loop.train(run, profiled=None, interruption=Stop(self.requested, self.stack.turn))
