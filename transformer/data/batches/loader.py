"""Batches in the order of the plan, prepared ahead of the step.

Threads assemble the next few batches, and another plans the next epoch. Grain's prefetch is the
same queue of futures, but it drains at the end of every epoch, and importing it takes seconds.
"""

import collections
import contextlib
import dataclasses
import itertools
import time
from collections.abc import Iterator, Sequence
from multiprocessing.pool import ThreadPool

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int

from transformer.config.types import Config, with_changes
from transformer.data.batches import bucketing, packing
from transformer.data.batches.collation import Arrays, assemble, place
from transformer.data.batches.epoch_plan import EpochPlan
from transformer.data.corpus.corpus import Corpus
from transformer.data.corpus.epoch import Epoch
from transformer.support import workers

EXIT_SECONDS = 5.0  # for which an exit waits, at most
# at most: a shape takes longer to compile than the padding of a small split to compute
HELD_OUT_BUCKETS = 4

# Each module has `choose_shapes(lengths, batch_config)` and `plan_epoch(lengths, buckets, random)`.
PLANS = {"buckets": bucketing, "packed": packing}


@dataclasses.dataclass(frozen=True)
class Position:
    """The next batch: its epoch and its number in that epoch, both from 0.

    A rollback changes the order of batches.
    """

    epoch: int
    batch: int
    num_rollbacks: int = 0


@dataclasses.dataclass(frozen=True)
class BatchStats:
    """The contents of a batch.

    Tokens count end-of-sentence; positions count padding, both sides.
    """

    sentences: int
    source_tokens: int
    target_tokens: int
    positions: int
    # the target tokens of each corpus of a mixture, by the plan
    corpus_tokens: tuple[int, ...] = ()


class Loader(Iterator[tuple[Position, Arrays, BatchStats]], contextlib.AbstractContextManager):
    """An endless iterator of (Position after the batch, arrays, BatchStats) over epochs of
    `corpus`, from `start` on.

    Every start costs the same: the plan of its epoch, which reads only the lengths of the corpus.
    Every process of the run makes the same plan, and the devices of `mesh` share the rows of a
    batch. `next()` raises the errors of the background threads. Use the loader in a `with`
    statement.

    Attributes:
      buckets: the shapes of all batches of the run.
      pairs, plan: the pairs and the plan of the epoch that `start` is in.
      data_wait_seconds: seconds spent in `next()`.
    """

    def __init__(self, corpus: Corpus, config: Config, start: Position, mesh: Mesh) -> None:
        self._corpus = corpus
        self._config = config
        self._start = start
        self._mesh = mesh
        # Subword sampling is Python code, which in threads would take turns with the step.
        num_samplers = min(config.data.prefetch, workers.num_workers(config.data.workers))
        is_pooled = corpus.sampler is not None and num_samplers > 1
        self._samplers = workers.Pool(corpus.sampler, num_samplers) if is_pooled else None
        self.buckets = PLANS[config.batch.plan].choose_shapes(
            corpus.all_pairs().lengths, config.batch
        )
        self.pairs, self.plan = self._plan(start.epoch)
        self.data_wait_seconds = 0.0
        # Its threads are daemons: an executor's would delay the exit by the plan of an epoch that
        # is not needed.
        self._threads = ThreadPool(config.data.prefetch + 1)
        # the position after each of the next batches, and its pending result
        self._ahead = collections.deque()
        self._batches = self._run()

    def __next__(self) -> tuple[Position, Arrays, BatchStats]:
        began = time.perf_counter()
        try:
            return next(self._batches)
        finally:
            self.data_wait_seconds += time.perf_counter() - began

    def __exit__(self, *_) -> None:
        until = time.perf_counter() + EXIT_SECONDS
        try:
            # JAX aborts a process that ends while a thread places arrays
            for _, batch in self._ahead:
                batch.wait(max(until - time.perf_counter(), 0.0))
        finally:
            self._threads.terminate()
            if self._samplers is not None:
                self._samplers.close()

    def _plan(self, epoch: int) -> tuple[Epoch, EpochPlan]:
        seed = self._config.seed
        corpus = self._corpus.epoch(epoch, seed, self._samplers)
        if self._start.num_rollbacks:
            seed = int(
                np.random.SeedSequence([seed, self._start.num_rollbacks]).generate_state(1)[0]
            )
        random = np.random.default_rng([seed, epoch])
        return corpus, PLANS[self._config.batch.plan].plan_epoch(
            corpus.lengths, self.buckets, random
        )

    def _run(self) -> Iterator[tuple[Position, Arrays, BatchStats]]:
        corpus = self.pairs
        plan = self.plan
        first = self._start.batch
        for epoch in itertools.count(self._start.epoch):
            following = self._threads.apply_async(self._plan, (epoch + 1,))
            for number in range(first, len(plan)):
                after = (epoch, number + 1) if number + 1 < len(plan) else (epoch + 1, 0)
                batch = self._threads.apply_async(_assemble, (corpus, plan, number, self._mesh))
                self._ahead.append((Position(*after, self._start.num_rollbacks), batch))
                if len(self._ahead) > self._config.data.prefetch:
                    position, batch = self._ahead[0]
                    result = batch.get()
                    self._ahead.popleft()
                    yield position, *result
            corpus, plan = following.get()
            first = 0


def plan_in_order(
    corpora: Sequence[tuple[Corpus, Int[np.ndarray, " _"]]], config: Config
) -> list[EpochPlan]:
    """Plans the batches of these pairs of corpora, each in a fixed order. The shapes of all plans
    are the same.

    Leaves out pairs that exceed `data.max_length`.
    """
    kept = [
        pairs[corpus.lengths[pairs].max(axis=1) <= config.data.max_length]
        for corpus, pairs in corpora
    ]
    lengths = [corpus.lengths[pairs] for (corpus, _), pairs in zip(corpora, kept, strict=True)]
    batch_config = with_changes(
        config.batch, max_buckets=min(config.batch.max_buckets, HELD_OUT_BUCKETS)
    )
    shapes = bucketing.choose_shapes(np.concatenate(lengths), batch_config)
    plans = [bucketing.plan_epoch(part, shapes, random=None) for part in lengths]
    return [
        dataclasses.replace(plan, sentences=x[plan.sentences])
        for plan, x in zip(plans, kept, strict=True)
    ]


def _assemble(corpus: Epoch, plan: EpochPlan, number: int, mesh: Mesh) -> tuple[Arrays, BatchStats]:
    batch = plan[number]
    arrays = assemble(corpus, batch)
    # PAD is 0
    tokens = (int(np.count_nonzero(arrays.get(name, ()))) for name in ("source", "target_output"))
    stats = BatchStats(
        len(batch.sentences), *tokens, batch.bucket.positions, corpus.corpus_tokens(batch.sentences)
    )
    return place(arrays, mesh), stats
