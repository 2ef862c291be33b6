"""The interface of hooks, which act beside the steps of the training loop.

`transformer/run/loop.py` lists them.
"""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

from transformer.training.progress import Progress, Record
from transformer.training.samples import ValidationSample


class Hook(AbstractContextManager):
    """Base class for hooks of the training loop. All methods are no-ops.

    The loop calls the methods in the main thread.
    """

    def __exit__(self, *_: object) -> None:
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
        # These methods call the method of the same name of each hook.
        for method in ("on_start", "before_step", "after_step", "on_log", "on_validation", "poll"):
            setattr(self, method, functools.partial(self._call, method))

    def __enter__(self) -> "Hooks":
        for hook in self._hooks:
            self.enter_context(hook)
        return self

    def _call(self, method: str, *arguments: object) -> None:
        for hook in self._hooks:
            getattr(hook, method)(*arguments)

    @contextlib.contextmanager
    def during(self, activity: str) -> Iterator[None]:
        with contextlib.ExitStack() as contexts:
            for hook in self._hooks:
                contexts.enter_context(hook.during(activity))
            yield

    def stop_requested(self) -> bool:
        # Without short-circuit: all processes must call each hook equally often.
        return any([hook.stop_requested() for hook in self._hooks])
