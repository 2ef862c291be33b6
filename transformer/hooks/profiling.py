"""A trace of some steps of a run, `transformer.train --profile=FROM:TO`, for TensorBoard or Perfetto."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import jax
from absl import logging

from transformer.data.batches.epoch_plan import Bucket
from transformer.errors import UserError
from transformer.hooks.hook import Hook
from transformer.training.progress import Progress
from transformer.training.state import TrainState

STEP_NAME = "train"  # by which TensorBoard recognizes the steps


class Profile(Hook):
    """Traces the steps from `first` to `last` and writes the trace into `folder`. If the run ends earlier, so does it.

    Process 0 traces itself and its devices; the other processes do nothing. Steps that a resumed run has done are not
    traced.
    """

    def __init__(self, folder: Path, steps: tuple[int, int] | None, num_steps: int):
        """Without `steps` nothing is traced. Raises UserError if `num_steps`, the run's length, ends before them."""
        if steps and steps[0] > num_steps:
            raise UserError(
                f"--profile={steps[0]}:{steps[1]}: the run ends at config.training.steps={num_steps}; name earlier ones"
            )
        self.folder = folder
        self.first, self.last = steps if steps and jax.process_index() == 0 else (0, 0)
        self.is_tracing = False
        self._annotation: jax.profiler.StepTraceAnnotation | None = None

    def __exit__(self, *_: object) -> None:
        if self.is_tracing:
            self._stop()

    def on_start(self, state: TrainState, progress: Progress, buckets: Sequence[Bucket]) -> None:
        if 0 < self.last <= progress.step and not self.is_tracing:
            logging.warning(
                "--profile=%d:%d: nothing is traced, since the run has already done step %d.",
                *(self.first, self.last, progress.step),
            )

    def before_step(self, step: int) -> None:
        """Begins the trace before the first of the steps, and names what happens until `after_step` as this step."""
        if not self.is_tracing and self.first <= step <= self.last:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # would slow the steps down by an event for each call
            jax.profiler.start_trace(self.folder, profiler_options=options)
            self.is_tracing = True
        self._annotation = jax.profiler.StepTraceAnnotation(STEP_NAME, step_num=step)
        self._annotation.__enter__()

    def after_step(self, state: TrainState, progress: Progress, metrics: dict, batches: Sequence[dict]) -> None:
        """Ends the trace after the last of the steps, once the devices have computed it."""
        self._annotation.__exit__(None, None, None)
        if self.is_tracing and progress.step >= self.last:
            jax.block_until_ready(metrics)
            self._stop()

    def during(self, activity: str) -> AbstractContextManager:
        return jax.profiler.TraceAnnotation(activity)

    def _stop(self) -> None:
        self.is_tracing, self.last = False, 0
        jax.profiler.stop_trace()
        logging.info("Wrote a trace to %s (docs/profiling.md says how to read it).", self.folder)
