"""How far a run has got, beside what is in `TrainState`."""

import dataclasses
from dataclasses import dataclass

from transformer.data.batches.loader import Position


@dataclass(frozen=True)
class Progress:
    """Written into every checkpoint.

    order: how often the run was rolled back; the data comes in another order each time. epoch, batch: the next batch.
    examples, tokens: sentence pairs and target tokens trained on. skipped: the last so many updates were left out.
    seconds: spent so far, over all starts. validated_step: of the last validation. best_score is the best
    validation's, of `checkpoint.best_metric`; None before the first. window: the sums of `TrainingWindow` since the
    last training line; None if that was the step before.
    """

    step: int = 0
    order: int = 0
    epoch: int = 0
    batch: int = 0
    examples: int = 0
    tokens: int = 0
    skipped: int = 0
    seconds: float = 0.0
    validated_step: int = 0
    best_score: float | None = None
    best_step: int | None = None
    validations_since_best: int = 0
    window: dict[str, float] | None = None

    @property
    def position(self) -> Position:
        return Position(self.epoch, self.batch, self.order)

    @property
    def is_best(self) -> bool:
        """Whether no validation so far was better than one at this step."""
        return self.best_step == self.step

    def validated(self, score: float, metric: str) -> "Progress":
        """After a validation at this step: the best so far, and how many there have been since."""
        after = dataclasses.replace(self, validated_step=self.step)
        higher = metric == "bleu"
        if self.best_score is None or (score > self.best_score if higher else score < self.best_score):
            return dataclasses.replace(after, best_score=score, best_step=self.step, validations_since_best=0)
        return dataclasses.replace(after, validations_since_best=self.validations_since_best + 1)


def due(step: int, every: int, last: int) -> bool:
    return step % every == 0 or step == last
