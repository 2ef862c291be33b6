"""Compilation of a run's programs before they are needed: what does not fit in memory fails early."""

import time
from collections.abc import Callable, Sequence

from absl import logging

from transformer import progress_bar
from transformer.data.batches.epoch_plan import Bucket
from transformer.hooks.hook import Hook
from transformer.training.progress import Progress
from transformer.training.state import TrainState
from transformer.training.step import TrainStep
from transformer.training.validation import Validation
from transformer.workers import call_all

MIN_LOGGED_SECONDS = 1.0  # of a compilation


class WarmUp(Hook):
    """Compiles the programs of steps and validations, and runs the validation's largest batch."""

    def __init__(self, train_step: TrainStep, validation: Validation, poll: Callable[[], None]):
        """`poll` is called after each program. It may raise an error."""
        self.train_step, self.validation, self._poll = train_step, validation, poll

    def on_start(self, state: TrainState, progress: Progress, buckets: Sequence[Bucket]) -> None:
        """Compiles the missing programs in threads. Raises the first error in the order of the programs."""
        jobs = self.train_step.compilations(state, buckets)
        jobs += self.validation.compilations(state.eval_parameters)
        started = time.perf_counter()
        with progress_bar.bar("Compiling programs", len(jobs)) as advance:
            call_all(jobs, lambda: (advance(1), self._poll()))
        if (seconds := time.perf_counter() - started) >= MIN_LOGGED_SECONDS:
            logging.info("Compiled %d programs in %.0f s.", len(jobs), seconds)
        self.validation.warm_up(state.eval_parameters)
        self._poll()
