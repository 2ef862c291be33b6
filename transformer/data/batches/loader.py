"""Batches in the order of the plan, prepared ahead of the step.

Threads assemble the next few batches, and another thread plans the next epoch. Grain's prefetch is
the same queue of futures, but it drains at the end of every epoch, and its import takes seconds.
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
from transformer.data.batches import bucketing, grouping, packing
from transformer.data.batches.collation import Arrays, assemble_batch, place_batch
from transformer.data.batches.epoch_plan import EpochPlan
from transformer.data.corpus.corpus import Corpus
from transformer.data.corpus.epoch import Epoch
from transformer.support import workers

EXIT_SECONDS = 5.0  # the longest time that an exit waits for batches in preparation
# The most shapes of held-out batches: to compile a shape takes longer than to compute the padding
# that it saves on a small split.
HELD_OUT_BUCKETS = 4

# Each module has `choose_shapes(lengths, batch_config)` and `plan_epoch(lengths, buckets, random)`.
PLANS = {"buckets": bucketing, "packed": packing, "groups": grouping}


@dataclasses.dataclass(frozen=True)
class DataPosition:
    """The place of the next batch in the data: its epoch and its number in that epoch, from 0.

    Each rollback changes the order of the batches.
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


Item = tuple[DataPosition, Arrays, BatchStats]  # the position after the batch, and the batch


class Loader(Iterator[Item], contextlib.AbstractContextManager):
    """An endless iterator over the batches of `corpus`, epoch after epoch, from `start` on.

    It yields (DataPosition after the batch, arrays, BatchStats). A start anywhere in the data takes
    the same time, because a plan reads only the lengths of the corpus. All processes of a run make
    the same plan, and the devices of `mesh` share the rows of a batch.

    `next()` raises the errors of the background threads. Use the loader in a `with` statement.

    Attributes:
      buckets: the shapes of all batches of the run.
      pairs, epoch_plan: the pairs and the plan of the epoch of `start`.
      data_wait_seconds: seconds spent in `next()`.
    """

    def __init__(self, corpus: Corpus, config: Config, start: DataPosition, mesh: Mesh) -> None:
        self._corpus = corpus
        self._config = config
        self._start = start
        self._mesh = mesh

        # Subword sampling is Python code. In threads it would take turns with the step.
        prefetch = config.data.prefetch
        num_samplers = min(prefetch, workers.num_workers(config.data.workers))
        self._samplers = None
        if corpus.sampler is not None and num_samplers > 1:
            self._samplers = workers.Pool(corpus.sampler, num_samplers)

        self._planner = PLANS[config.batch.plan]
        self.buckets = self._planner.choose_shapes(corpus.all_pairs().lengths, config.batch)
        self.pairs, self.epoch_plan = self._plan_epoch(start.epoch)
        self.data_wait_seconds = 0.0

        # Daemon threads: those of an executor would delay the exit until an unneeded plan is ready.
        self._threads = ThreadPool(prefetch + 1)
        # the position after each of the next batches, and its pending result
        self._ahead = collections.deque()
        self._batches = self._run()

    def __next__(self) -> Item:
        began = time.perf_counter()
        try:
            return next(self._batches)
        finally:
            self.data_wait_seconds += time.perf_counter() - began

    def __exit__(self, *_) -> None:
        until = time.perf_counter() + EXIT_SECONDS
        try:
            # JAX aborts a process that ends while a thread places arrays.
            for _, batch in self._ahead:
                batch.wait(max(until - time.perf_counter(), 0.0))
        finally:
            self._threads.terminate()
            if self._samplers is not None:
                self._samplers.close()

    def _plan_epoch(self, epoch: int) -> tuple[Epoch, EpochPlan]:
        seed = self._config.seed
        pairs = self._corpus.epoch(epoch, seed)
        if self._samplers is not None:
            pairs = dataclasses.replace(pairs, sampler=self._samplers)
        num_rollbacks = self._start.num_rollbacks
        if num_rollbacks:
            # Another order of the same sentences, in the same segmentations.
            sequence = np.random.SeedSequence([seed, num_rollbacks])
            seed = int(sequence.generate_state(1)[0])
        random = np.random.default_rng([seed, epoch])
        return pairs, self._planner.plan_epoch(pairs.lengths, self.buckets, random)

    def _run(self) -> Iterator[Item]:
        pairs = self.pairs
        plan = self.epoch_plan
        first = self._start.batch
        for epoch in itertools.count(self._start.epoch):
            # A thread plans the next epoch while the batches of this epoch are read.
            next_epoch = self._threads.apply_async(self._plan_epoch, (epoch + 1,))
            for number in range(first, len(plan)):
                after = (epoch, number + 1) if number + 1 < len(plan) else (epoch + 1, 0)
                position = DataPosition(*after, self._start.num_rollbacks)
                batch = self._threads.apply_async(_assemble, (pairs, plan, number, self._mesh))
                self._ahead.append((position, batch))
                if len(self._ahead) > self._config.data.prefetch:
                    # The batch stays in the queue until it is ready, so that `__exit__` waits for
                    # it after an interrupt.
                    position, batch = self._ahead[0]
                    arrays, stats = batch.get()
                    self._ahead.popleft()
                    yield position, arrays, stats
            pairs, plan = next_epoch.get()
            first = 0


def plan_in_order(
    corpora: Sequence[tuple[Corpus, Int[np.ndarray, " _"]]], config: Config
) -> list[EpochPlan]:
    """Plans the batches of these pairs of each corpus in a fixed order, with the same shapes.

    Leaves out pairs that exceed `data.max_length`.
    """
    # The pairs that fit, and their lengths.
    pairs_to_plan = []
    lengths = []
    for corpus, pairs in corpora:
        pair_lengths = corpus.lengths[pairs]
        fits = pair_lengths.max(axis=1) <= config.data.max_length
        pairs_to_plan.append(pairs[fits])
        lengths.append(pair_lengths[fits])

    # The corpora share few shapes, chosen for all their pairs together.
    max_buckets = min(config.batch.max_buckets, HELD_OUT_BUCKETS)
    batch_config = with_changes(config.batch, max_buckets=max_buckets)
    shapes = bucketing.choose_shapes(np.concatenate(lengths), batch_config)

    # A plan numbers the pairs from 0, so replace these numbers by those of the corpus.
    plans = []
    for pairs, pair_lengths in zip(pairs_to_plan, lengths, strict=True):
        plan = bucketing.plan_epoch(pair_lengths, shapes, random=None)
        plans.append(dataclasses.replace(plan, sentences=pairs[plan.sentences]))
    return plans


def _assemble(pairs: Epoch, plan: EpochPlan, number: int, mesh: Mesh) -> tuple[Arrays, BatchStats]:
    batch = plan[number]
    arrays = assemble_batch(pairs, batch)
    # PAD is 0.
    source_tokens = int(np.count_nonzero(arrays.get("source", ())))
    target_tokens = int(np.count_nonzero(arrays.get("target_output", ())))
    stats = BatchStats(
        len(batch.sentences),
        source_tokens,
        target_tokens,
        batch.bucket.positions,
        pairs.corpus_tokens(batch.sentences),
    )
    return place_batch(arrays, mesh), stats
