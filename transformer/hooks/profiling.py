"""A trace of some steps of a run, for TensorBoard or Perfetto (`--profile=FROM:TO`)."""

from contextlib import AbstractContextManager
from pathlib import Path

import jax
from absl import logging

from transformer.hooks.hook import Hook
from transformer.training.progress import Progress


class Profile(Hook):
    """A hook that traces this process and its devices in the steps from `first` to `last`."""

    def __init__(self, folder: Path, first: int, last: int):
        self.folder = folder
        self.steps = range(first, last + 1)  # no steps once they are traced
        self.is_tracing = False

    def __exit__(self, *_: object) -> None:
        if self.is_tracing:
            self._stop()

    def on_start(self, progress: Progress) -> None:
        if self.steps and self.steps[-1] <= progress.step:
            logging.warning(
                "--profile: no trace, since the run has done these steps; it is at step %d.",
                progress.step,
            )

    def before_step(self, step: int) -> None:
        """Begins the trace before the first of the steps.

        The events until `after_step` are named as this step.
        """
        if not self.is_tracing and step in self.steps:
            # Python's own tracer would slow the steps down by an event for each call.
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0
            jax.profiler.start_trace(self.folder, profiler_options=options)
            self.is_tracing = True
        # TensorBoard's page of steps needs this annotation.
        self._annotation = jax.profiler.StepTraceAnnotation("train", step_num=step)
        self._annotation.__enter__()

    def after_step(self, progress: Progress, metrics: dict) -> None:
        """Ends the trace after the last of the steps, once the devices have computed it."""
        self._annotation.__exit__(None, None, None)
        if self.is_tracing and progress.step >= self.steps[-1]:
            jax.block_until_ready(metrics)
            self._stop()

    def during(self, activity: str) -> AbstractContextManager:
        return jax.profiler.TraceAnnotation(activity)

    def _stop(self) -> None:
        # A trace is written once.
        self.is_tracing = False
        self.steps = range(0)
        jax.profiler.stop_trace()
        logging.info("Wrote a trace to %s (docs/profiling.md says how to read it).", self.folder)
