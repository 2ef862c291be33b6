"""The progress of a run: counts, scores and data position, but not the arrays of `TrainState`."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from transformer.config_types import Config
from transformer.data.batches.loader import BatchStats, Position


@dataclass(frozen=True)
class Progress:
    """The values of a checkpoint that are not arrays, of types that JSON preserves."""

    step: int = 0  # updates done or skipped
    rollbacks: list[list[int]] = field(default_factory=list)  # [from step, to step]; each changes the order of the data
    epoch: int = 0  # of the next batch
    batch: int = 0  # number of the next batch in that epoch
    examples: int = 0  # sentence pairs trained on
    tokens: int = 0  # target tokens trained on
    skipped: int = 0  # consecutive skipped updates, up to this step
    seconds: float = 0.0  # duration of the run, over all starts
    validated_step: int = 0  # step of the last validation
    best_score: float | None = None  # by `checkpoint.best_metric`; None before the first validation
    best_loss: float | None = None  # of that validation; None also in older checkpoints
    best_step: int | None = None  # step of that validation
    validations_since_best: int = 0
    # Sums of `TrainingWindow` since the last training line.
    window: dict[str, float | int] = field(default_factory=dict)

    @property
    def position(self) -> Position:
        return Position(self.epoch, self.batch, len(self.rollbacks))

    @property
    def is_best(self) -> bool:
        """True if the validation at this step is the best so far."""
        return self.best_step == self.step

    def validation_due(self, training: Config) -> bool:
        """Tells whether a validation is due at this step and has not been done. `training` is `config.training`."""
        return self.validated_step < self.step and due(self.step, training.eval_every, training.steps)

    def is_finished(self, training: Config) -> bool:
        """Tells whether all steps are done, or the patience is exhausted. `training` is `config.training`."""
        if 0 < training.patience <= self.validations_since_best:
            return True
        return self.step >= training.steps and not self.validation_due(training)

    def after_update(self, position: Position, stats: Sequence[BatchStats], seconds: float) -> "Progress":
        """Returns the progress after an update from these batches, where `position` is that of the next batch."""
        examples = self.examples + sum(batch.sentences for batch in stats)
        tokens = self.tokens + sum(batch.target_tokens for batch in stats)
        counts = {"step": self.step + 1, "examples": examples, "tokens": tokens, "seconds": seconds}
        return dataclasses.replace(self, epoch=position.epoch, batch=position.batch, **counts)

    def after_validation(self, values: Mapping[str, float], metric: str) -> "Progress":
        """Returns the progress after a validation at this step, with the scores `values`, compared by `metric`.

        Of equal scores the one with the lower loss is the better, and then the earlier.
        """
        after = dataclasses.replace(self, validated_step=self.step)
        score, loss = values[metric], values["loss"]
        if self.best_score is None or _rank(score, loss, metric) > _rank(self.best_score, self.best_loss, metric):
            best = {"best_score": score, "best_loss": loss, "best_step": self.step}
            return dataclasses.replace(after, **best, validations_since_best=0)
        return dataclasses.replace(after, validations_since_best=self.validations_since_best + 1)


def _rank(score: float, loss: float | None, metric: str) -> tuple[float, ...]:
    """Returns the values of a validation as they compare: the higher, the better; not finite is worst."""
    values = (score if metric == "bleu" else -score, -math.inf if loss is None else -loss)
    return tuple(value if math.isfinite(value) else -math.inf for value in values)


def due(step: int, every: int, last: int) -> bool:
    """Tells whether something that is done every so many steps, and at the last, is due at this step."""
    return step % every == 0 or step == last
