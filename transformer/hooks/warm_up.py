"""Compilation of a run's programs before they are needed: what does not fit in memory fails early."""

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import jax
from absl import logging

from transformer import progress_bar
from transformer.data.batches.epoch_plan import Bucket
from transformer.hooks.endings import Interrupted
from transformer.hooks.hook import Hook
from transformer.training.progress import Progress
from transformer.training.state import TrainState
from transformer.training.step import TrainStep
from transformer.training.validation import Validation
from transformer.workers import call_all

MIN_LOGGED_SECONDS = 1.0  # of a compilation


class WarmUp(Hook):
    """Compiles the programs of steps and validations, and runs the validation's largest batch.

    A single process on CPUs compiles the validation's programs in threads while it trains. Others do so before the
    first step: several processes would finish at different steps, and accelerators time kernels on the device.
    """

    def __init__(
        self, train_step: TrainStep, validation: Validation, abstract_state: TrainState, poll: Callable[[], None]
    ):
        """`poll` is called after each program, and while a validation waits for its programs. It may raise an error."""
        self.train_step, self.validation, self.abstract_state, self._poll = train_step, validation, abstract_state, poll
        self.in_background = jax.process_count() == 1 and train_step.mesh.devices.flat[0].platform == "cpu"
        self._pool, self._stopped = ThreadPoolExecutor(1, "warm-up"), threading.Event()
        self._is_done = False  # what precedes the first step
        self._background: Future | None = None  # None once its programs are compiled

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._pool.shutdown()

    def on_start(self, state: TrainState, progress: Progress, buckets: Sequence[Bucket]) -> None:
        """Compiles all programs that must precede the first step. After a rollback they are compiled already."""
        if self._is_done:
            return
        jobs = self.train_step.compilations(self.abstract_state, buckets)
        if not self.in_background:
            jobs += self.validation.compilations(self.abstract_state.eval_parameters)
        with progress_bar.bar("Compiling programs", len(jobs)) as advance:
            compile_all(jobs, lambda: (advance(1), self._poll()))
        self._is_done = True
        if self.in_background:
            self._background = self._pool.submit(self._compile_validation)
        else:
            self.validation.warm_up(state.eval_parameters)
            self._poll()

    def after_step(self, state: TrainState, *_: object) -> None:
        """Runs the validation's largest batch once its program is compiled. Raises an error of the compilation."""
        if self._background is not None and self._background.done():
            self._background.result()
            self._background = None
            self.validation.warm_up(state.eval_parameters)

    @contextlib.contextmanager
    def during(self, activity: str) -> Iterator[None]:
        """Waits until all programs are compiled before a validation, or before a rollback traces others."""
        if self._background is not None and activity in ("validating", "rolling back"):
            while not self._background.done():
                if activity == "validating":
                    self._poll()
                concurrent.futures.wait([self._background], timeout=0.1)
            self._background.result()
            self._background = None
        yield

    def _compile_validation(self) -> None:
        def check_not_stopped() -> None:
            if self._stopped.is_set():
                raise Interrupted

        # `Samples` captures intermediates while it traces, so nothing else may trace now: the steps' programs are done.
        compile_all(self.validation.compilations(self.abstract_state.eval_parameters), check_not_stopped)


def compile_all(jobs: Sequence[Callable[[], object]], after_job: Callable[[], None]) -> None:
    """Compiles one program a job and logs the time. Raises the first error, so the largest program belongs first."""
    started = time.perf_counter()
    call_all(jobs, after_job)
    if (seconds := time.perf_counter() - started) >= MIN_LOGGED_SECONDS:
        logging.info("Compiled %d programs in %.0f s.", len(jobs), seconds)
