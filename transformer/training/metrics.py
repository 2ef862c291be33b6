"""Metrics of a training line and of a validation: means over tokens and updates."""

import contextlib
import dataclasses
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import SupportsFloat

import jax

from transformer.data.batches.loader import BatchStats

MAX_STEPS_IN_FLIGHT = 2  # enough to keep the device busy
Record = dict[str, float | int | str]


def means(sums: Mapping[str, SupportsFloat]) -> Record:
    """Returns per-token means of sums named as in `LossSums`. Perplexity is that of `nll`, which is not smoothed."""
    loss, nll, correct, tokens = (float(sums[name]) for name in ("loss", "nll", "correct", "tokens"))
    tokens = max(tokens, 1.0)  # a batch may have no masked token, or no target that fits its frames
    return {
        "loss": loss / tokens,
        "nll": nll / tokens,
        "perplexity": math.exp(min(nll / tokens, 700.0)),
        "accuracy": correct / tokens,
    }


class TrainingWindow:
    """The updates since the last training line: sums of their metrics, and the time that they took.

    Checkpoints contain the sums, from `totals`, so that an interruption changes nothing in the next line but its
    timings. `data_wait_seconds` are the loader's at the start of the window.
    """

    def __init__(self, sums: Mapping[str, float | int], data_wait_seconds: float = 0.0) -> None:
        self.sums = Counter(sums)
        self.resumed_tokens = self.sums["tokens"]
        self.num_steps = 0
        self.pending: list[dict] = []  # metrics that are still on the device
        self.learning_rate = 0.0
        self.started, self.paused_seconds = time.perf_counter(), 0.0
        self.data_wait_seconds = data_wait_seconds

    def add(self, metrics: dict, stats: Sequence[BatchStats]) -> None:
        """Adds an update. Waits for an earlier one if too many are in flight."""
        self.num_steps += 1
        for batch in stats:
            self.sums.update(pieces=batch.source_tokens + batch.target_tokens, positions=batch.positions)
        self.pending.append(metrics)
        # JAX itself would dispatch dozens of steps, and an interrupted run would have to wait for all of them.
        if len(self.pending) >= MAX_STEPS_IN_FLIGHT:
            jax.block_until_ready(self.pending[-MAX_STEPS_IN_FLIGHT])

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Excludes the time of the block from the window's."""
        jax.block_until_ready(self.pending)
        started = time.perf_counter()
        yield
        self.paused_seconds += time.perf_counter() - started

    def totals(self) -> dict[str, float | int]:
        """Returns the sums so far. Waits for the device."""
        for metrics in jax.device_get(self.pending):
            is_skipped = bool(metrics["skipped"])  # then the sums are zero
            norm = 0.0 if is_skipped else float(metrics["gradient_norm"])
            self.sums.update({name: float(value) for name, value in dataclasses.asdict(metrics["sums"]).items()})
            self.sums.update(gradient_norm=norm, updates=int(not is_skipped), skipped=int(is_skipped))
            self.learning_rate = float(metrics["learning_rate"])
        self.pending = []
        return dict(self.sums)

    def summary(self, data_wait_seconds: float) -> Record | None:
        """Returns the values of a training line; None if all updates were skipped."""
        totals = self.totals()
        if totals["updates"] == 0:
            return None
        seconds = time.perf_counter() - self.started - self.paused_seconds
        return means(totals) | {
            "learning_rate": self.learning_rate,
            "gradient_norm": totals["gradient_norm"] / totals["updates"],
            "skipped": totals["skipped"],
            "steps_per_second": self.num_steps / seconds,
            "tokens_per_second": (totals["tokens"] - self.resumed_tokens) / seconds,
            "padding_fraction": 1.0 - totals["pieces"] / totals["positions"],
            "waiting_fraction": (data_wait_seconds - self.data_wait_seconds) / seconds,
        }
