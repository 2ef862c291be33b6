"""A trace of some steps of a run, `transformer.train --profile=FROM:TO`, for TensorBoard or Perfetto."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from absl import logging

from transformer.errors import UserError

STEP_NAME = "train"  # by which TensorBoard recognizes the steps


class Profile:
    """A `with` block around training that traces the steps from `first` to `last` and writes the trace into `folder`.

    If the run ends earlier, so does the trace. Process 0 traces itself and its devices; the other processes do nothing.
    """

    def __init__(self, folder: Path, steps: tuple[int, int] | None, step: int, num_steps: int):
        """`step` is the run's last step so far and `num_steps` its length; without `steps` nothing is traced.

        Steps that a resumed run has done are not traced. Raises UserError if the run ends before the first of `steps`.
        """
        if steps and steps[1] <= step:
            logging.warning("--profile=%d:%d: nothing is traced, since the run has already done step %d.", *steps, step)
            steps = None
        if steps and steps[0] > num_steps:
            raise UserError(
                f"--profile={steps[0]}:{steps[1]}: the run ends at config.training.steps={num_steps}; name earlier ones"
            )
        self.folder = folder
        self.first, self.last = steps if steps and jax.process_index() == 0 else (0, 0)
        self.is_tracing = False

    def __enter__(self) -> "Profile":
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_tracing:
            self._stop()

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Names what happens in the block as step `number`, and begins the trace before the first step."""
        if not self.is_tracing and self.first <= number <= self.last:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # would slow the steps down by an event for each call
            jax.profiler.start_trace(self.folder, profiler_options=options)
            self.is_tracing = True
        with jax.profiler.StepTraceAnnotation(STEP_NAME, step_num=number):
            yield

    def after_step(self, number: int, results: Any) -> None:
        """Ends the trace after the last step, once the devices have computed its results."""
        if self.is_tracing and number >= self.last:
            jax.block_until_ready(results)
            self._stop()

    def _stop(self) -> None:
        self.is_tracing, self.last = False, 0
        jax.profiler.stop_trace()
        logging.info("Wrote a trace to %s (docs/profiling.md says how to read it).", self.folder)
