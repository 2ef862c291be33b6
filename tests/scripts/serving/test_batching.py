"""The queue: what is computed together, and what cannot disturb others."""

import asyncio
import threading

import pytest

from scripts.serving.batching import Batcher, QueueFull, Work
from transformer.support.errors import UserError


class Recorder:
    """Doubles numbers, and records the batches. The first call waits for `go`."""

    def __init__(self) -> None:
        self.batches, self.go, self.has_begun = [], threading.Event(), threading.Event()

    def __call__(self, numbers: list[int]) -> list[int]:
        self.has_begun.set()
        self.go.wait(10)
        self.batches.append(numbers)
        if 13 in numbers:
            raise ValueError("13")
        return [2 * number for number in numbers]


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def queue(recorder):
    queue = Batcher(
        {"double": Work(recorder, 4), "other": Work(recorder, 1)}, wait_seconds=0.0, max_jobs=9
    )
    yield queue
    recorder.go.set()
    queue.close()


def run(queue, recorder, then):
    """Runs `then` after a first job has begun, and lets that go on after it has put its jobs in the
    queue.
    """

    async def main():
        first = asyncio.ensure_future(queue.compute("double", [0]))
        await asyncio.to_thread(recorder.has_begun.wait, 10)
        task = asyncio.ensure_future(then())
        await asyncio.sleep(0.01)
        recorder.go.set()
        return (await asyncio.gather(first, task, return_exceptions=True))[1]

    return asyncio.run(main())


def test_requests_that_wait_are_computed_together_by_kind_and_capacity(queue, recorder):
    async def then():
        calls = (("double", [1, 2]), ("other", [3, 4]), ("double", [5, 6, 7]))
        return await asyncio.gather(*(queue.compute(*call) for call in calls))

    assert run(queue, recorder, then) == [[2, 4], [6, 8], [10, 12, 14]]
    assert recorder.batches == [[0], [1, 2, 5, 6], [3], [4], [7]]


def test_only_the_request_at_fault_fails(queue, recorder):
    async def then():
        return await asyncio.gather(
            *(queue.compute("double", [n]) for n in (1, 13, 2)), return_exceptions=True
        )

    first, error, second = run(queue, recorder, then)
    assert (first, second) == ([2], [4]) and str(error) == "13"


def test_a_request_that_is_cancelled_leaves_the_queue(queue, recorder):
    async def then():
        cancelled = asyncio.ensure_future(queue.compute("double", [1, 2, 3, 4, 5]))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.sleep(0)
        # with the five above, the queue would be too long
        return await queue.compute("double", [6, 7, 8, 9, 10])

    assert run(queue, recorder, then) == [12, 14, 16, 18, 20]
    assert recorder.batches == [[0], [6, 7, 8, 9], [10]]


def test_a_full_queue_refuses(queue, recorder):
    async def then():
        return await asyncio.gather(
            *(queue.compute("double", [1] * n) for n in (9, 1)), return_exceptions=True
        )

    accepted, refused = run(queue, recorder, then)
    assert accepted == [2] * 9 and isinstance(refused, QueueFull)


def test_a_short_request_passes_a_long_one(recorder):
    queue = Batcher({"double": Work(recorder, 4)}, wait_seconds=0.0, max_jobs=99)

    async def then():
        return await asyncio.gather(
            queue.compute("double", range(100, 130)), queue.compute("double", [1, 2])
        )

    assert run(queue, recorder, then) == [[2 * n for n in range(100, 130)], [2, 4]]
    queue.close()
    assert recorder.batches[3] == [1, 2, 108, 109] and recorder.batches[-1] == [126, 127, 128, 129]


def test_a_request_that_no_queue_can_hold_is_refused_for_good(queue):
    with pytest.raises(UserError, match="the text has 10 sentences, must have at most 9"):
        asyncio.run(queue.compute("double", range(10)))


def test_a_closed_queue_finishes_its_jobs(queue, recorder):
    async def then():
        task = asyncio.ensure_future(queue.compute("double", [1, 2, 3, 4, 5]))
        await asyncio.sleep(0)
        recorder.go.set()
        await asyncio.to_thread(queue.close)
        return await task

    assert run(queue, recorder, then) == [2, 4, 6, 8, 10]
    assert not queue.is_alive


def test_a_busy_queue_waits_for_as_many_jobs_as_before():
    recorder = Recorder()
    recorder.go.set()
    queue = Batcher({"double": Work(recorder, 8)}, wait_seconds=5.0, max_jobs=99)

    async def main():
        for _ in range(8):
            await queue.compute("double", range(8))
        first = asyncio.ensure_future(queue.compute("double", [0, 1, 2, 3]))
        await asyncio.sleep(0.05)
        await asyncio.gather(first, queue.compute("double", [4, 5, 6, 7]))

    asyncio.run(main())
    queue.close()
    assert recorder.batches[-1] == list(range(8))
