"""The interface of hooks, which act beside the steps of the training loop.

`transformer/run/loop.py` lists them.
"""

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

from transformer.training.progress import Progress, Record
from transformer.training.samples import ValidationSample


class Hook(AbstractContextManager):
    """Base class for hooks of the training loop. All methods are no-ops.

    The loop calls the methods in the main thread.
    """

    def __exit__(self, kind: object, *_: object) -> None:
        return None

    def on_start(self, progress: Progress) -> None:
        """Called before the programs of the first step are compiled, also after a rollback."""

    def before_step(self, step: int) -> None:
        """Called before the batches of this step are fetched."""

    def after_step(self, progress: Progress, metrics: dict) -> None:
        """Called once the step has been dispatched. The devices may not have computed it yet."""

    def on_log(self, progress: Progress, values: Record) -> None:
        """Called with the metrics of the steps since the last call."""

    def on_validation(
        self, progress: Progress, values: Record, samples: Sequence[ValidationSample]
    ) -> None:
        """Called after a validation that was not interrupted."""

    def during(self, activity: str) -> AbstractContextManager:
        """Returns a context for "wait for data", "validating", "saving" or "rolling back"."""
        return contextlib.nullcontext()

    def poll(self) -> None:
        """Called often during validation and compilation. An exception ends them."""

    def stop_requested(self) -> bool:
        """Called once per step. True makes the run save a checkpoint and stop."""
        return False


class Hooks(contextlib.ExitStack):
    """Several hooks as one, called in their order."""

    def __init__(self, *hooks: Hook) -> None:
        super().__init__()
        self._hooks = hooks

    def __enter__(self) -> "Hooks":
        for hook in self._hooks:
            self.enter_context(hook)
        return self

    def on_start(self, progress: Progress) -> None:
        for hook in self._hooks:
            hook.on_start(progress)

    def before_step(self, step: int) -> None:
        for hook in self._hooks:
            hook.before_step(step)

    def after_step(self, progress: Progress, metrics: dict) -> None:
        for hook in self._hooks:
            hook.after_step(progress, metrics)

    def on_log(self, progress: Progress, values: Record) -> None:
        for hook in self._hooks:
            hook.on_log(progress, values)

    def on_validation(
        self, progress: Progress, values: Record, samples: Sequence[ValidationSample]
    ) -> None:
        for hook in self._hooks:
            hook.on_validation(progress, values, samples)

    def poll(self) -> None:
        for hook in self._hooks:
            hook.poll()

    @contextlib.contextmanager
    def during(self, activity: str) -> Iterator[None]:
        with contextlib.ExitStack() as contexts:
            for hook in self._hooks:
                contexts.enter_context(hook.during(activity))
            yield

    def stop_requested(self) -> bool:
        # Without short-circuit: all processes must call each hook equally often.
        return any([hook.stop_requested() for hook in self._hooks])
