"""Batches in the order of the plan, prepared ahead of the step.

A batch is a pure function of the epoch's corpus and plan, so one thread prepares the next few while the step runs, and
another plans the next epoch. (Grain's prefetch is the same queue of futures, but it would drain at the end of every
epoch, and importing it takes seconds.)
"""

import collections
import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures

import numpy as np
from jaxtyping import Int32

from transformer.config_types import Config
from transformer.data.batches import bucketing, packing
from transformer.data.batches.collation import assemble
from transformer.data.batches.epoch_plan import EpochPlan, PlannedBatch
from transformer.data.corpus.corpus import Corpus

Arrays = dict[str, Int32[np.ndarray, "_ _"]]

# Each module has `choose_shapes(corpus, config)` and `plan_epoch(lengths, buckets, random)`.
PLANS = {"buckets": bucketing, "packed": packing}


@dataclasses.dataclass(frozen=True)
class Position:
    """The next batch: its epoch and its number in that epoch, both from 0. A rollback changes the order of batches."""

    epoch: int
    batch: int
    num_rollbacks: int = 0


@dataclasses.dataclass(frozen=True)
class BatchStats:
    """The contents of a batch. Tokens count end-of-sentence; positions count padding, both sides."""

    sentences: int
    source_tokens: int
    target_tokens: int
    positions: int


class Loader:
    """An endless iterator of (Position after the batch, arrays, BatchStats) over epochs of `corpus`, from `start` on.

    Every start costs the same: the plan of its epoch, which reads the lengths and nothing else of the corpus.
    `next()` raises the errors of the background threads. Use the loader in a `with` statement.

    Attributes:
      buckets: the shapes of all batches of the run.
      plan: the plan of the epoch that `start` is in.
      data_wait_seconds: seconds spent in `next()`.
    """

    def __init__(self, corpus: Corpus, config: Config, start: Position) -> None:
        self._corpus, self._config, self._start = corpus, config, start
        self.buckets = PLANS[config.batch.plan].choose_shapes(corpus, config)
        self._epoch, self.plan = self._prepare(start.epoch)
        self.data_wait_seconds = 0.0
        self._assembler = futures.ThreadPoolExecutor(1, "assemble")
        self._batches = self._run()

    def __iter__(self) -> "Loader":
        return self

    def __next__(self) -> tuple[Position, Arrays, BatchStats]:
        began = time.perf_counter()
        try:
            return next(self._batches)
        finally:
            self.data_wait_seconds += time.perf_counter() - began

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_) -> None:
        self._assembler.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, epoch: int) -> tuple[Corpus, EpochPlan]:
        seed, num_rollbacks = self._config.seed, self._start.num_rollbacks
        corpus = self._corpus.epoch(epoch, seed)
        if num_rollbacks:
            seed = int(np.random.SeedSequence([seed, num_rollbacks]).generate_state(1)[0])
        random = np.random.default_rng([seed, epoch])
        return corpus, PLANS[self._config.batch.plan].plan_epoch(corpus.lengths, self.buckets, random)

    def _jobs(self) -> Iterator[tuple[Position, futures.Future]]:
        """Yields (position after the batch, future of the batch); taking one from this iterator starts its work."""
        corpus, plan, first = self._epoch, self.plan, self._start.batch
        for epoch in itertools.count(self._start.epoch):
            following = _in_daemon_thread(self._prepare, epoch + 1)
            for number in range(first, len(plan)):
                after = (epoch, number + 1) if number + 1 < len(plan) else (epoch + 1, 0)
                batch = self._assembler.submit(_assemble, corpus, plan[number])
                yield Position(*after, self._start.num_rollbacks), batch
            (corpus, plan), first = following.result(), 0

    def _run(self) -> Iterator[tuple[Position, Arrays, BatchStats]]:
        jobs = self._jobs()
        ahead = collections.deque(itertools.islice(jobs, self._config.data.prefetch))
        while True:
            ahead.append(next(jobs))
            after, batch = ahead.popleft()
            yield after, *batch.result()


def _in_daemon_thread(function: Callable, *arguments) -> futures.Future:
    """Runs the function in a daemon thread and returns a Future.

    Python waits for the threads of an executor before it exits, and encoding a large corpus for the next epoch may take
    an hour. An interrupted run must end sooner.
    """
    result = futures.Future()

    def run() -> None:
        try:
            result.set_result(function(*arguments))
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="plan", daemon=True).start()
    return result


def in_order(corpus: Corpus, config: Config) -> Iterator[Arrays]:
    """Yields every batch of a held-out corpus once, in a fixed order and in buckets chosen for its lengths.

    No held-out pair is dropped for its length, so a batch of very long sentences may exceed `batch.tokens`.
    """
    buckets = bucketing.choose_buckets(corpus.lengths, config.batch)
    plan = bucketing.plan_epoch(corpus.lengths, buckets, random=None)
    for number in range(len(plan)):
        yield assemble(corpus, plan[number])


def _assemble(corpus: Corpus, batch: PlannedBatch) -> tuple[Arrays, BatchStats]:
    source_tokens, target_tokens = np.asarray(corpus.lengths[batch.sentences]).sum(axis=0).tolist()
    stats = BatchStats(len(batch.sentences), source_tokens, target_tokens, batch.bucket.positions)
    return assemble(corpus, batch), stats
