"""The record of a run: `metrics.jsonl`, TensorBoard scalars and log lines."""

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import SupportsFloat

import jax
from absl import logging

from transformer import files
from transformer.data.batches.bucketing import BucketStats
from transformer.data.batches.loader import BatchStats
from transformer.training.loss import LossSums
from transformer.training.progress import Progress
from transformer.training.tensorboard import TensorBoardWriter
from transformer.workdir import Workdir

STEPS_AHEAD = 2  # steps under way at a time: the device never waits for the loop
NOT_DRAWN = ("step", "split", "examples", "tokens", "seconds")
TIMINGS = ("seconds", "steps_per_second", "tokens_per_second", "waiting_fraction")
Record = dict[str, float | int | str]
TOTALS = (
    *(field.name for field in dataclasses.fields(LossSums)),
    "gradient_norm",
    "updates",
    "skipped",
    "pieces",
    "positions",
)


def means(sums: Mapping[str, SupportsFloat]) -> Record:
    """Returns per-token means of sums named as in `LossSums`; perplexity is that of the plain NLL."""
    loss, nll, correct, tokens = (float(sums[name]) for name in ("loss", "nll", "correct", "tokens"))
    return {
        "loss": loss / tokens,
        "nll": nll / tokens,
        "perplexity": math.exp(min(nll / tokens, 700.0)),
        "accuracy": correct / tokens,
    }


class TrainingWindow:
    """The steps since the last training line: their sums, on the device until asked for, and where their time went.

    `carried`: the sums of such steps before the run was interrupted, as `totals` gave them. The line is then the same
    as if it had not been, but for what measures time.
    """

    def __init__(self, carried: dict[str, float] | None) -> None:
        self.restart(0.0)
        self.carried = carried

    def restart(self, waited: float) -> None:
        self.carried: dict[str, float] | None = None
        self.steps: list[dict] = []
        self.stats: list[BatchStats] = []
        self.began, self.waited, self.paused = time.perf_counter(), waited, 0.0

    def add(self, metrics: dict, stats: Sequence[BatchStats]) -> None:
        self.steps.append(metrics)
        self.stats.extend(stats)
        # Left alone, JAX starts steps by the dozen before the first is done; a signal would wait for all of them.
        if len(self.steps) >= STEPS_AHEAD:
            jax.block_until_ready(self.steps[-STEPS_AHEAD])

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """What happens in the block is no training: its time does not count."""
        jax.block_until_ready(self.steps)
        began = time.perf_counter()
        yield
        self.paused += time.perf_counter() - began

    def totals(self) -> dict[str, float] | None:
        """The sums so far, for a checkpoint; None if there are none."""
        parts = [_contribution(step) for step in jax.device_get(self.steps)]
        parts += [
            {"pieces": stats.source_pieces + stats.target_pieces, "positions": stats.positions} for stats in self.stats
        ]
        totals = None if self.carried is None else dict(self.carried)
        for part in parts:
            totals = totals or dict.fromkeys(TOTALS, 0.0)
            for name, value in part.items():
                totals[name] += float(value)
        return totals

    def summary(self, waited: float) -> Record | None:
        """Means over the window's updates; None if all were skipped.

        `waited`: seconds the loader has kept the loop waiting, in all.
        """
        totals = self.totals()
        if totals["updates"] == 0:
            return None
        seconds = time.perf_counter() - self.began - self.paused
        tokens = totals["tokens"] - (self.carried["tokens"] if self.carried else 0.0)
        return means(totals) | {
            "learning_rate": float(self.steps[-1]["learning_rate"]),
            "gradient_norm": totals["gradient_norm"] / totals["updates"],
            "skipped": int(totals["skipped"]),
            "steps_per_second": len(self.steps) / seconds,
            "tokens_per_second": tokens / seconds,
            "padding_fraction": 1.0 - totals["pieces"] / totals["positions"],
            "waiting_fraction": (waited - self.waited) / seconds,
        }


def _contribution(step: dict) -> dict[str, SupportsFloat]:
    """What a step's metrics add to the totals. The sums of a skipped update are zero already."""
    is_skipped = bool(step["skipped"])
    norm = 0.0 if is_skipped else step["gradient_norm"]
    return dataclasses.asdict(step["sums"]) | {"gradient_norm": norm, "updates": not is_skipped, "skipped": is_skipped}


class Recorder:
    """Writes the record. Going on from a checkpoint, it first drops what the run had recorded after it.

    That may include the validation of the checkpoint's own step, which is then done again.
    """

    def __init__(self, workdir: Workdir, progress: Progress):
        self.path = workdir.metrics
        reached = {"train": progress.step, "valid": progress.validated_step}
        kept, dropped = [], []
        for line in read_lines(self.path):
            (kept if line["step"] <= reached[line["split"]] else dropped).append(line)
        if self.path.exists():
            files.write_text(self.path, "".join(f"{json.dumps(line)}\n" for line in kept))
        first_step = min([progress.step + 1, *(line["step"] for line in dropped)])
        self.curves = TensorBoardWriter(workdir.tensorboard, first_step)
        for line in kept:
            if line["step"] >= first_step:
                self._draw(line)

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *_) -> None:
        self.curves.close()

    def write(self, split: str, progress: Progress, values: Record) -> None:
        record = {"step": progress.step, "split": split, **values}
        record |= {"examples": progress.examples, "tokens": progress.tokens, "seconds": round(progress.seconds, 3)}
        files.append_line(self.path, json.dumps(record))
        self._draw(record)

    def _draw(self, line: Record) -> None:
        points = {f"{line['split']}/{name}": value for name, value in line.items() if name not in NOT_DRAWN}
        self.curves.add(line["step"], points)


def read_lines(path: Path) -> list[Record]:
    """The whole lines of a record so far; none if there is no record yet."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    return [line for line in map(_parsed, text.split("\n")) if line is not None]


def read_untimed(path: Path) -> list[Record]:
    """The lines of a record, without what a clock measured: what is the same whenever the run is repeated."""
    return [{key: value for key, value in line.items() if key not in TIMINGS} for line in read_lines(path)]


def _parsed(line: str) -> Record | None:
    """None if it is not a line of a record, or not all of it."""
    try:
        record = json.loads(line)
        is_whole = type(record["step"]) is int and record["split"] in ("train", "valid")
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return record if is_whole else None


def log_training(progress: Progress, values: Record, steps: int) -> None:
    left = timedelta(seconds=round((steps - progress.step) / values["steps_per_second"]))
    logging.info(
        "step %d/%d  loss %.3f  ppl %.2f  lr %.2e  %.0f tok/s  waiting %.0f %%  left %s%s",
        *(progress.step, steps, values["loss"], values["perplexity"], values["learning_rate"]),
        *(values["tokens_per_second"], 100 * values["waiting_fraction"], left),
        f"  ({values['skipped']} updates skipped: not finite)" if values["skipped"] else "",
    )


def log_validation(progress: Progress, values: Record) -> None:
    bleu = f"  BLEU {values['bleu']:.2f}  exact match {values['exact_match']:.3f}" if "bleu" in values else ""
    best = "  (best so far)" if progress.best_step == progress.step else ""
    logging.info(
        "step %d  validation: loss %.3f  ppl %.2f  accuracy %.3f%s%s",
        *(progress.step, values["loss"], values["perplexity"], values["accuracy"], bleu, best),
    )


def log_batches(uses: Sequence[BucketStats], padding_fraction: float) -> None:
    shapes = ", ".join(f"{use.bucket.rows} x {use.bucket.source_length}/{use.bucket.target_length}" for use in uses)
    logging.info(
        "Batches: %d an epoch, %.1f %% padding, %d shapes (rows x source/target): %s",
        *(sum(use.batches for use in uses), 100 * padding_fraction, len(uses), shapes),
    )
