"""Batches in the order of the plan, made ready ahead of the step.

Assembling a batch is a pure function of the epoch's corpus and plan, so threads make the next few while the step runs, and another plans the
epoch after this one. (Grain's prefetch is the same pool of futures, an epoch at a time; importing it takes seconds.)
"""

import collections
import dataclasses
import itertools
import time
from collections.abc import Iterator
from concurrent import futures

import ml_collections
import numpy as np
from absl import logging
from jaxtyping import Int

from transformer.data import batching, packing
from transformer.data.buckets import Bucket, choose_buckets

Arrays = dict[str, Int[np.ndarray, "B _"]]


@dataclasses.dataclass(frozen=True)
class Position:
    """The next batch: its epoch and its number in that epoch, both from 0."""

    epoch: int
    batch: int


@dataclasses.dataclass(frozen=True)
class BatchStats:
    """What a batch holds. Pieces count end-of-sentence; positions count padding, both sides."""

    sentences: int
    source_pieces: int
    target_pieces: int
    positions: int


class Loader:
    """An endless iterator of (Position after the batch, arrays, BatchStats) over epochs of `corpus`, from `start` on.

    Attributes:
      buckets: the shapes of all batches of the run.
      plan: the plan of the epoch that `start` is in.
      waited: seconds that the caller has spent in `next()`.

    What fails in the background is raised by `next()`. Close it, or use it in a `with` statement.
    """

    def __init__(self, corpus, config: ml_collections.ConfigDict | ml_collections.FrozenConfigDict, start: Position):
        self._corpus, self._config, self._start = corpus, config, start
        self._packed = config.batch.plan == "packed"
        self.buckets = choose_shapes(corpus, config)
        self.waited = 0.0
        self._planner = futures.ThreadPoolExecutor(1, "plan")
        self._workers = futures.ThreadPoolExecutor(2, "batch")
        self._first = self._plan(start.epoch)
        self.plan = self._first[1]
        self._batches = self._run()

    def __iter__(self) -> Iterator[tuple[Position, Arrays, BatchStats]]:
        return self

    def __next__(self) -> tuple[Position, Arrays, BatchStats]:
        began = time.perf_counter()
        try:
            return next(self._batches)
        finally:
            self.waited += time.perf_counter() - began

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Drops what was made ahead; the threads end with what they are doing."""
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._planner.shutdown(wait=False, cancel_futures=True)

    def _plan(self, epoch: int):
        corpus = self._corpus.epoch(epoch, self._config.seed)
        planned = packing.plan_epoch if self._packed else batching.plan_epoch
        plan = planned(corpus.lengths, self.buckets, self._config.seed, epoch)
        logging.info("Epoch %d: %d batches, %.1f %% padding.", epoch + 1, len(plan), 100 * plan.padding_fraction)
        return corpus, plan

    def _jobs(self) -> Iterator[tuple[Position, futures.Future]]:
        """Every batch from the start on, being made from the moment it is asked for here."""
        (corpus, plan), first = self._first, self._start.batch
        for epoch in itertools.count(self._start.epoch):
            following = self._planner.submit(self._plan, epoch + 1)
            for number in range(first, len(plan)):
                after = Position(epoch, number + 1) if number + 1 < len(plan) else Position(epoch + 1, 0)
                yield after, self._workers.submit(_make, corpus, plan[number], self._packed)
            (corpus, plan), first = following.result(), 0

    def _run(self) -> Iterator[tuple[Position, Arrays, BatchStats]]:
        jobs = self._jobs()
        ahead = collections.deque(itertools.islice(jobs, self._config.data.prefetch))
        while True:
            ahead.append(next(jobs))
            after, job = ahead.popleft()
            yield after, *job.result()


def choose_shapes(corpus, config: ml_collections.ConfigDict | ml_collections.FrozenConfigDict) -> tuple[Bucket, ...]:
    """The shapes that a run trains with: fixed once, whatever lengths subword sampling gives a later epoch."""
    if config.batch.plan == "packed":
        return (packing.row_shape(config.batch),)
    if config.tokenizer.sampling == 0:
        return choose_buckets(corpus.lengths, config.batch)
    longest = (config.data.max_length, config.data.max_length)
    return choose_buckets(corpus.epoch(0, config.seed).lengths, config.batch, longest)


def in_order(corpus, config: ml_collections.ConfigDict | ml_collections.FrozenConfigDict) -> Iterator[tuple[Arrays, BatchStats]]:
    """Every batch of a held-out corpus once, without chance, in buckets of its own lengths."""
    plan = batching.plan_in_order(corpus.lengths, choose_buckets(corpus.lengths, config.batch))
    for number in range(len(plan)):
        yield _make(corpus, plan[number], packed=False)


def host_rows(arrays: Arrays, host: int, hosts: int) -> Arrays:
    """The rows of a global batch that `host` of `hosts` feeds to its devices, in the order of the hosts."""
    return {name: np.split(array, hosts)[host] for name, array in arrays.items()}


def _make(corpus, batch: batching.Batch, packed: bool) -> tuple[Arrays, BatchStats]:
    arrays = batching.assemble(corpus, batch, packed)
    source_pieces, target_pieces = np.asarray(corpus.lengths[batch.sentences]).sum(axis=0).tolist()
    return arrays, BatchStats(len(batch.sentences), source_pieces, target_pieces, batch.bucket.positions)
