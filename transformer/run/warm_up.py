"""Compilation of a run's programs and a first batch of its validation: what does not fit in memory fails early."""

import concurrent.futures
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import jax

from transformer.data.batches.epoch_plan import Bucket
from transformer.run.compilation import compile_all
from transformer.training.state import TrainState
from transformer.training.step import TrainStep
from transformer.training.validation import Validation

POLL_SECONDS = 0.1


class WarmUp:
    """Compiles the programs of steps and validations, and runs the validation's largest batch, in a `with` block.

    A single process on CPUs compiles the validation's programs in threads while it trains. Other runs compile them
    before the first step: several processes would finish at different steps, and compilers for accelerators time
    kernels on the device.
    """

    def __init__(self, train_step: TrainStep, validation: Validation, abstract_state: TrainState):
        self.train_step, self.validation, self.state = train_step, validation, abstract_state
        self.in_background = jax.process_count() == 1 and train_step.mesh.devices.flat[0].platform == "cpu"
        self._pool, self._stopped = ThreadPoolExecutor(1, "warm-up"), threading.Event()
        self._pending: Future | None = None

    def __enter__(self) -> "WarmUp":
        return self

    def __exit__(self, *_) -> None:
        self._stopped.set()
        self._pool.shutdown()

    def start(
        self,
        parameters: dict,
        buckets: Sequence[Bucket],
        is_interrupted: Callable[[], bool],
        report: Callable[[int, int], None],
    ) -> bool:
        """Compiles all programs that must precede the first step. Returns False if the run is to stop.

        Args:
          parameters: those to validate with.
          buckets: of the training batches.
          is_interrupted, report: see `compile_all`.
        """
        jobs = self.train_step.compilations(self.state, buckets)
        if not self.in_background:
            jobs += self._validation_jobs()
        if not compile_all(jobs, is_interrupted, report):
            return False
        if self.in_background:
            self._pending = self._pool.submit(self._compile_validation)
            return True
        self.validation.warm_up(parameters)
        return not is_interrupted()

    def is_compiled(self) -> bool:
        """Tells whether the threads have compiled all programs, and `finish` has not been called since."""
        return self._pending is not None and self._pending.done()

    def finish(self, parameters: dict) -> None:
        """Runs the largest batch of the validation. Raises the first error of the compilation."""
        self._take_result()
        self.validation.warm_up(parameters)

    def wait(self, meanwhile: Callable[[], None]) -> None:
        """Waits until all programs are compiled. Calls `meanwhile` repeatedly, whose exceptions end the wait.

        Raises the first error of the compilation.
        """
        if self._pending is None:
            return
        while not self._pending.done():
            meanwhile()
            concurrent.futures.wait([self._pending], POLL_SECONDS)
        self._take_result()

    def _take_result(self) -> None:
        self._pending, done = None, self._pending
        done.result()

    def _validation_jobs(self) -> list[Callable[[], object]]:
        return self.validation.compilations(self.state.eval_parameters)

    def _compile_validation(self) -> None:
        # `Samples` captures intermediates while it traces, so nothing else may trace now: the steps' programs are done.
        compile_all(self._validation_jobs(), self._stopped.is_set, lambda *_: None)
