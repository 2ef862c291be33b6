"""Batches in the order of the plan, made ready ahead of the step.

A batch is a pure function of the epoch's corpus and plan, so a thread makes the next few while the step runs, and
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

import ml_collections
import numpy as np
from jaxtyping import Int32

from transformer.config_types import Config
from transformer.data.batches import bucketing as batching
from transformer.data.batches import packing
from transformer.data.batches.bucketing import Batch, EpochPlan
from transformer.data.batches.buckets import Bucket, choose_buckets
from transformer.data.batches.collation import Sentences, assemble
from transformer.data.batches.packing import PackedPlan
from transformer.errors import UserError

Arrays = dict[str, Int32[np.ndarray, "_ _"]]


@dataclasses.dataclass(frozen=True)
class Position:
    """The next batch: its epoch and its number in that epoch, both from 0. Every roll-back changes their order."""

    epoch: int
    batch: int
    num_rollbacks: int = 0


@dataclasses.dataclass(frozen=True)
class BatchStats:
    """What a batch holds. Pieces count end-of-sentence; positions count padding, both sides."""

    sentences: int
    source_pieces: int
    target_pieces: int
    positions: int


class Loader:
    """An endless iterator of (Position after the batch, arrays, BatchStats) over epochs of `corpus`, from `start` on.

    Starting anywhere costs the same: the plan of that epoch, which takes the lengths and nothing else of the corpus.
    What fails in the background is raised by `next()`. Close it, or use it in a `with` statement.

    Attributes:
      buckets: the shapes of all batches of the run.
      plan: the plan of the epoch that `start` is in.
      data_wait_seconds: seconds that the caller has spent in `next()`.

    Raises:
      UserError: the corpus cannot be batched as `config.batch` says, or has no such `start`.
    """

    def __init__(self, corpus: Sentences, config: Config, start: Position) -> None:
        self._corpus, self._config, self._start = corpus, config, start
        self._packed = config.batch.plan == "packed"
        self.buckets = choose_shapes(corpus, config)
        self._epoch, self.plan = self._prepare(start.epoch)
        if start.batch >= len(self.plan):
            raise UserError(
                f"data: the run stopped at batch {start.batch} of epoch {start.epoch}, which has {len(self.plan)} now; "
                f"the data has changed since: restore it, or start in another workdir"
            )
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
        self.close()

    def close(self) -> None:
        """Drops what was made ahead."""
        self._assembler.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, epoch: int) -> tuple[Sentences, EpochPlan | PackedPlan]:
        corpus = self._corpus.epoch(epoch, self._config.seed)
        plan_epoch = packing.plan_epoch if self._packed else batching.plan_epoch
        return corpus, plan_epoch(
            corpus.lengths, self.buckets, _shuffle_seed(self._config.seed, self._start.num_rollbacks), epoch
        )

    def _jobs(self) -> Iterator[tuple[Position, futures.Future]]:
        """The batches from the start on; each is being made from the moment it is asked for here."""
        corpus, plan, first = self._epoch, self.plan, self._start.batch
        for epoch in itertools.count(self._start.epoch):
            following = _begun(self._prepare, epoch + 1)
            for number in range(first, len(plan)):
                after = (epoch, number + 1) if number + 1 < len(plan) else (epoch + 1, 0)
                yield (
                    Position(*after, self._start.num_rollbacks),
                    self._assembler.submit(_make, corpus, plan[number], self._packed),
                )
            (corpus, plan), first = following.result(), 0

    def _run(self) -> Iterator[tuple[Position, Arrays, BatchStats]]:
        jobs = self._jobs()
        ahead = collections.deque(itertools.islice(jobs, self._config.data.prefetch))
        while True:
            ahead.append(next(jobs))
            after, job = ahead.popleft()
            arrays, stats = job.result()
            yield after, arrays, stats


def _begun(function: Callable, *arguments) -> futures.Future:
    """What the function will give, by a thread of its own. An executor's would keep the process from ending before.

    To encode a large corpus anew may take an hour, which a run that is to stop does not have.
    """
    result = futures.Future()

    def run() -> None:
        try:
            result.set_result(function(*arguments))
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="plan", daemon=True).start()
    return result


def choose_shapes(corpus: Sentences, config: Config) -> tuple[Bucket, ...]:
    """The shapes that a run trains with: fixed once, whatever lengths subword sampling gives a later epoch.

    With sampling they suit the lengths of the first epoch, and the largest holds any sentence that training allows.
    """
    if config.batch.plan == "packed":
        return (packing.row_shape(config.batch),)
    if config.tokenizer.subword_sampling == 0:
        return choose_buckets(corpus.lengths, config.batch)
    longest = (config.data.max_length, config.data.max_length)
    return choose_buckets(corpus.epoch(0, config.seed).lengths, config.batch, longest)


def in_order(corpus: Sentences, config: Config) -> Iterator[tuple[Arrays, BatchStats]]:
    """Every batch of a held-out corpus once, without chance, in buckets of its own lengths.

    Nothing held out is dropped for its length, so a sentence too long for `batch.tokens` makes the batches larger.
    """
    needed = int(np.max(corpus.lengths)) * config.batch.row_multiple
    batch = ml_collections.ConfigDict(config.batch)
    batch.tokens = max(config.batch.tokens, needed)
    plan = batching.plan_in_order(corpus.lengths, choose_buckets(corpus.lengths, batch))
    for number in range(len(plan)):
        yield _make(corpus, plan[number], packed=False)


def _shuffle_seed(seed: int, num_rollbacks: int) -> int:
    return seed if num_rollbacks == 0 else int(np.random.SeedSequence([seed, num_rollbacks]).generate_state(1)[0])


def _make(corpus: Sentences, batch: Batch, packed: bool) -> tuple[Arrays, BatchStats]:
    arrays = assemble(corpus, batch, packed)
    source_pieces, target_pieces = np.asarray(corpus.lengths[batch.sentences]).sum(axis=0).tolist()
    return arrays, BatchStats(len(batch.sentences), source_pieces, target_pieces, batch.bucket.positions)
