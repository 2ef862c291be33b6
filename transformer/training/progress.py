"""The progress of a run: counts, scores and data position, and the values of its training lines."""

import contextlib
import dataclasses
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, SupportsFloat

import jax

from transformer.config.types import Config
from transformer.data.batches.loader import BatchStats, DataPosition

MAX_STEPS_IN_FLIGHT = 2  # enough to keep the device busy
Record = dict[str, Any]


@dataclass(frozen=True)
class Progress:
    """The values of a checkpoint that are not arrays, of types that JSON preserves."""

    step: int = 0  # updates done or skipped
    # [from step, to step]; each changes the order of the data
    rollbacks: list[list[int]] = field(default_factory=list)
    epoch: int = 0  # of the next batch
    batch: int = 0  # number of the next batch in that epoch
    examples: int = 0  # sentence pairs trained on
    tokens: int = 0  # target tokens trained on
    skipped: int = 0  # consecutive skipped updates, up to this step
    seconds: float = 0.0  # duration of the run, over all starts, without compilation
    validation_seconds: float = 0.0  # the part of `seconds` that validations took
    validated_step: int = 0  # step of the last validation
    best_score: float | None = None  # by `checkpoint.best_metric`; None before the first validation
    best_loss: float | None = None  # of that validation
    best_step: int | None = None  # step of that validation
    validations_since_best: int = 0
    # Sums of `TrainingWindow` since the last training line.
    window: dict[str, float | int] = field(default_factory=dict)
    # `tokens` by corpus of a mixture
    corpus_tokens: list[int] = field(default_factory=list)

    @property
    def data_position(self) -> DataPosition:
        return DataPosition(self.epoch, self.batch, len(self.rollbacks))

    @property
    def is_best(self) -> bool:
        """True if the validation at this step is the best so far."""
        return self.best_step == self.step

    def validation_due(self, training_config: Config) -> bool:
        """True if a validation is due at this step and has not been done."""
        if self.validated_step >= self.step:
            return False
        return is_due(self.step, training_config.eval_every, training_config.steps)

    def is_finished(self, training_config: Config) -> bool:
        """True if all steps are done, or the patience is exhausted."""
        if 0 < training_config.patience <= self.validations_since_best:
            return True
        return self.step >= training_config.steps and not self.validation_due(training_config)

    def after_update(
        self,
        data_position: DataPosition,
        stats: Sequence[BatchStats],
        seconds: float,
    ) -> "Progress":
        """Returns the progress after an update from these batches.

        `data_position` is the place of the next batch.
        """
        # A run that is not a mixture has no counts by corpus.
        by_corpus = [self.corpus_tokens, *(batch.corpus_tokens for batch in stats)]
        columns = zip(*filter(None, by_corpus), strict=True)
        return dataclasses.replace(
            self,
            step=self.step + 1,
            epoch=data_position.epoch,
            batch=data_position.batch,
            examples=self.examples + sum(batch.sentences for batch in stats),
            tokens=self.tokens + sum(batch.target_tokens for batch in stats),
            corpus_tokens=[sum(column) for column in columns],
            seconds=seconds,
        )

    def after_validation(self, values: Mapping[str, float], metric: str) -> "Progress":
        """Returns the progress after a validation.

        At equal scores the lower loss is better, then the earlier step.
        """
        # Imported here, because sacreBLEU takes time that loading a checkpoint does not need.
        from transformer.decoding.metrics import rank

        score = values[metric]
        loss = values["loss"]
        if self.best_score is not None:
            best_rank = rank(self.best_score, self.best_loss, metric)
            if rank(score, loss, metric) <= best_rank:
                since_best = self.validations_since_best + 1
                return dataclasses.replace(
                    self, validated_step=self.step, validations_since_best=since_best
                )
        return dataclasses.replace(
            self,
            validated_step=self.step,
            best_score=score,
            best_loss=loss,
            best_step=self.step,
            validations_since_best=0,
        )


def is_due(step: int, every: int, last: int) -> bool:
    """True on every `every`-th step and on the last step."""
    return step % every == 0 or step == last


def per_token_means(sums: Mapping[str, SupportsFloat]) -> Record:
    """Returns per-token means of sums named as in `LossSums`.

    Perplexity is exp(nll), where nll is the loss without label smoothing.
    """
    # A batch may have no masked token, or no target that fits its frames.
    tokens = float(sums["tokens"]) or 1.0
    nll = float(sums["nll"]) / tokens
    return {
        "loss": float(sums["loss"]) / tokens,
        "nll": nll,
        "perplexity": math.exp(min(nll, 700.0)),
        "accuracy": float(sums["correct"]) / tokens,
    }


class TrainingWindow:
    """The updates since the last training line: sums of their metrics, and their duration.

    Checkpoints contain the sums, from `totals`, so that an interruption changes only the timings of
    the next line. `data_wait_seconds` is the loader's value at the start of the window.
    """

    def __init__(self, sums: Mapping[str, float | int], data_wait_seconds: float = 0.0) -> None:
        self.sums: Any = Counter(sums)
        self.resumed_tokens = self.sums["tokens"]
        # since this start of the run
        self.num_steps = 0
        self.target_tokens = 0
        self.pending: list[dict] = []  # metrics that are still on the device
        self.learning_rate = 0.0
        self.start = time.perf_counter()
        self.paused_seconds = 0.0
        self.data_wait_seconds = data_wait_seconds

    def add(self, metrics: dict, stats: Sequence[BatchStats]) -> None:
        """Adds an update. Waits for an earlier one if too many are in flight."""
        self.num_steps += 1
        for batch in stats:
            self.sums["pieces"] += batch.source_tokens + batch.target_tokens
            self.sums["positions"] += batch.positions
            self.target_tokens += batch.target_tokens
        self.pending.append(metrics)
        # JAX itself would dispatch dozens of steps, and an interrupted run would have to wait for
        # all of them.
        if len(self.pending) >= MAX_STEPS_IN_FLIGHT:
            jax.block_until_ready(self.pending[-MAX_STEPS_IN_FLIGHT])

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Excludes the time of the block from the window's."""
        jax.block_until_ready(self.pending)
        start = time.perf_counter()
        yield
        self.paused_seconds += time.perf_counter() - start

    def totals(self) -> dict[str, float | int]:
        """Returns the sums so far. Waits for the device."""
        for metrics in jax.device_get(self.pending):
            for name, value in dataclasses.asdict(metrics["sums"]).items():
                self.sums[name] += float(value)
            # The sums of a skipped update are 0, but its norm may not be finite.
            is_skipped = bool(metrics["skipped"])
            self.sums["gradient_norm"] += 0.0 if is_skipped else float(metrics["gradient_norm"])
            self.sums["updates"] += int(not is_skipped)
            self.sums["skipped"] += int(is_skipped)
            self.learning_rate = float(metrics["learning_rate"])
        self.pending = []
        return dict(self.sums)

    def summary(self, data_wait_seconds: float) -> Record | None:
        """Returns the values of a training line, or None if all updates were skipped."""
        totals = self.totals()
        if totals["updates"] == 0:
            return None
        seconds = time.perf_counter() - self.start - self.paused_seconds
        # The sums are weighted by `pair_weights`. Without a target side, they count the predicted
        # tokens of the source.
        tokens = self.target_tokens or totals["tokens"] - self.resumed_tokens
        return per_token_means(totals) | {
            "learning_rate": self.learning_rate,
            "gradient_norm": totals["gradient_norm"] / totals["updates"],
            "skipped": totals["skipped"],
            "steps_per_second": self.num_steps / seconds,
            "tokens_per_second": tokens / seconds,
            "padding_fraction": 1.0 - totals["pieces"] / totals["positions"],
            "waiting_fraction": (data_wait_seconds - self.data_wait_seconds) / seconds,
        }
