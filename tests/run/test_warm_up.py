"""The warm-up: which programs precede the first step, and errors and interruptions of those compiled beside it."""

import threading
import time
from types import SimpleNamespace
from unittest import mock

import jax
import numpy as np
import pytest

from tests.training.tiny import at_step, run
from transformer.data.batches.epoch_plan import Bucket
from transformer.run.warm_up import WarmUp
from transformer.training.state import TrainState
from transformer.training.step import TrainStep
from transformer.training.validation import Validation

BUCKETS, ABSTRACT = [Bucket(8, 16, 16)], TrainState(0, 0, {"abstract": 1}, (), None)
INITIAL, LATER = {"initial": 1}, {"later": 1}


def warm_up_of(events: list, validation_jobs: list, platform: str = "cpu") -> WarmUp:
    """Returns a warm-up that adds to `events` what it compiles and runs."""
    mesh = SimpleNamespace(devices=np.array([SimpleNamespace(platform=platform)]))
    step, validation = mock.Mock(TrainStep, mesh=mesh), mock.Mock(Validation)
    step.compilations = lambda *given: [lambda: events.append(("step", *given))]
    validation.compilations = lambda given: validation_jobs if given == ABSTRACT.parameters else []
    validation.warm_up = lambda given: events.append(("run", given))
    return WarmUp(step, validation, ABSTRACT)


def start(warm_up: WarmUp) -> bool:
    return warm_up.start(INITIAL, BUCKETS, lambda: False, lambda *_: None)


def wait_until(condition) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_on_a_cpu_the_first_step_does_not_wait_for_the_validation():
    events, released = [], threading.Event()
    with warm_up_of(events, [lambda: released.wait(10), lambda: events.append("validation")]) as warm_up:
        assert start(warm_up)
        assert events == [("step", ABSTRACT, BUCKETS)]
        assert not warm_up.is_compiled()
        released.set()
        wait_until(warm_up.is_compiled)
        warm_up.finish(LATER)
        assert not warm_up.is_compiled()
    assert events == [("step", ABSTRACT, BUCKETS), "validation", ("run", LATER)]


@pytest.mark.parametrize(("processes", "platform"), [(2, "cpu"), (1, "gpu")])
def test_several_processes_and_accelerators_do_everything_before_the_first_step(monkeypatch, processes, platform):
    events = []
    monkeypatch.setattr(jax, "process_count", lambda: processes)
    with warm_up_of(events, [lambda: events.append("validation")], platform) as warm_up:
        assert start(warm_up)
        assert sorted(events[:2], key=str) == [("step", ABSTRACT, BUCKETS), "validation"]
        assert events[2:] == [("run", INITIAL)]
        assert not warm_up.is_compiled()
        warm_up.wait(lambda: pytest.fail("nothing is left to wait for"))


@pytest.mark.parametrize("end", [lambda warm_up: warm_up.finish({}), lambda warm_up: warm_up.wait(lambda: None)])
def test_an_error_of_a_thread_is_raised_in_the_loop(end):
    def fail() -> None:
        raise MemoryError("does not fit")

    with warm_up_of([], [fail]) as warm_up:
        start(warm_up)
        with pytest.raises(MemoryError, match="does not fit"):
            end(warm_up)


def test_a_validation_that_waits_can_be_interrupted_and_no_further_job_starts(monkeypatch):
    monkeypatch.setattr("transformer.run.compilation.num_workers", lambda _: 1)
    events, released, calls = [], threading.Event(), []

    def interrupt() -> None:
        calls.append(1)
        if len(calls) == 3:
            released.set()
            raise KeyboardInterrupt

    jobs = [lambda: released.wait(10) and time.sleep(0.2), *[lambda: time.sleep(0.2) or events.append("job")] * 9]
    with pytest.raises(KeyboardInterrupt), warm_up_of(events, jobs) as warm_up:
        start(warm_up)
        warm_up.wait(interrupt)
    assert events.count("job") <= 2  # of those that had begun
    before = list(events)
    time.sleep(0.5)
    assert events == before  # no thread is left


def test_training_begins_before_the_validation_is_compiled(tmp_path, monkeypatch):
    begun, compilations = threading.Event(), Validation.compilations
    at_step(monkeypatch, 1, begun.set)

    def with_wait(self, parameters):
        assert begun.wait(60), "the second step waits for the validation's programs"
        return compilations(self, parameters)

    monkeypatch.setattr(Validation, "compilations", with_wait)
    assert run(tmp_path / "run", training__steps=4) == 0
