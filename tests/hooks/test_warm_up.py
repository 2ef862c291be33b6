"""The warm-up: which programs precede the first step, errors and interruptions, and that nothing is compiled later."""

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from unittest import mock

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from tests.training.tiny import at_step, run
from transformer import workers
from transformer.data.batches.epoch_plan import Bucket
from transformer.hooks import warm_up as warm_ups
from transformer.hooks.endings import Interrupted
from transformer.hooks.warm_up import WarmUp, compile_all
from transformer.training.progress import Progress
from transformer.training.state import TrainState
from transformer.training.step import TrainStep
from transformer.training.validation import Validation

CACHE_DIR, CACHED_SECONDS = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"
BUCKETS = [Bucket(8, 16, 16)]
ABSTRACT, INITIAL, LATER = (TrainState(0, 0, {name: 1}, (), None) for name in ("abstract", "initial", "later"))
STEP_COMPILED = ("step", ABSTRACT, BUCKETS)


def warm_up_of(
    events: list, validation_jobs: list, platform: str = "cpu", poll: Callable[[], None] = lambda: None
) -> WarmUp:
    """Returns a warm-up that adds to `events` what it compiles and runs."""
    mesh = SimpleNamespace(devices=np.array([SimpleNamespace(platform=platform)]))
    step, validation = mock.Mock(TrainStep, mesh=mesh), mock.Mock(Validation)
    step.compilations = lambda *given: [lambda: events.append(("step", *given))]
    validation.compilations = lambda given: validation_jobs if given == ABSTRACT.parameters else []
    validation.warm_up = lambda given: events.append(("run", given))
    return WarmUp(step, validation, ABSTRACT, poll)


def start(warm_up: WarmUp) -> None:
    warm_up.on_start(INITIAL, Progress(), BUCKETS)


def wait_until(condition) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_on_a_cpu_the_first_step_does_not_wait_for_the_validation():
    events, released = [], threading.Event()
    with warm_up_of(events, [lambda: released.wait(10), lambda: events.append("validation")]) as warm_up:
        start(warm_up)
        warm_up.after_step(LATER)
        assert events == [STEP_COMPILED]
        released.set()
        wait_until(lambda: warm_up.after_step(LATER) or len(events) == 3)
        warm_up.after_step(LATER)
    assert events == [STEP_COMPILED, "validation", ("run", LATER.parameters)]


@pytest.mark.parametrize(("processes", "platform"), [(2, "cpu"), (1, "gpu")])
def test_several_processes_and_accelerators_do_everything_before_the_first_step(monkeypatch, processes, platform):
    events, polls = [], []
    monkeypatch.setattr(jax, "process_count", lambda: processes)
    jobs = [lambda: events.append("validation")]
    with warm_up_of(events, jobs, platform, lambda: polls.append(len(events))) as warm_up:
        start(warm_up)
        assert sorted(events[:2], key=str) == [STEP_COMPILED, "validation"]
        assert events[2:] == [("run", INITIAL.parameters)]
        assert len(polls) == 3  # equally many in all processes
        warm_up.after_step(LATER)
        with warm_up.during("validating"):
            assert len(events) == len(polls) == 3


def test_a_rollback_waits_for_the_compilation_and_does_not_repeat_it():
    events = []
    with warm_up_of(events, [lambda: time.sleep(0.2) or events.append("validation")]) as warm_up:
        start(warm_up)
        with warm_up.during("rolling back"):
            assert events == [STEP_COMPILED, "validation"]
        start(warm_up)
        assert events == [STEP_COMPILED, "validation"]


@pytest.mark.parametrize("end", [lambda warm_up: warm_up.after_step(LATER), lambda warm_up: enter(warm_up)])
def test_an_error_of_a_thread_is_raised_in_the_loop(end):
    def fail() -> None:
        raise MemoryError("does not fit")

    with warm_up_of([], [fail]) as warm_up:
        start(warm_up)
        with pytest.raises(MemoryError, match="does not fit"):
            wait_until(lambda: end(warm_up))


def enter(warm_up: WarmUp) -> None:
    with warm_up.during("validating"):
        pass


def test_a_validation_that_waits_can_be_interrupted_and_no_further_job_starts(monkeypatch):
    monkeypatch.setattr(workers, "num_workers", lambda _: 1)
    events, released, calls = [], threading.Event(), []

    def interrupt() -> None:
        calls.append(1)
        if len(calls) == 3:
            released.set()
            raise KeyboardInterrupt

    jobs = [lambda: released.wait(10) and time.sleep(0.2), *[lambda: time.sleep(0.2) or events.append("job")] * 9]
    with pytest.raises(KeyboardInterrupt), warm_up_of(events, jobs, poll=interrupt) as warm_up:
        start(warm_up)
        enter(warm_up)
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


def test_all_jobs_run_in_parallel(monkeypatch, caplog):
    monkeypatch.setattr(workers, "num_workers", lambda _: 3)
    monkeypatch.setattr(warm_ups, "MIN_LOGGED_SECONDS", 0.0)
    together, finished = threading.Barrier(3, timeout=10), []
    with caplog.at_level("INFO"):
        compile_all([together.wait] * 6, lambda: finished.append(1))
    assert len(finished) == 6
    assert caplog.messages == ["Compiled 6 programs in 0 s."]


def test_an_error_after_a_job_starts_no_further_one(monkeypatch):
    monkeypatch.setattr(workers, "num_workers", lambda _: 1)
    started = []
    jobs = (
        [lambda: started.append(1)] + [lambda: time.sleep(0.2) or started.append(2)] + [lambda: started.append(3)] * 4
    )

    def interrupt() -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        compile_all(jobs, interrupt)
    assert started in ([1], [1, 2])  # the second may have been running


def test_the_first_error_is_raised_and_starts_no_further_job(monkeypatch):
    monkeypatch.setattr(workers, "num_workers", lambda _: 1)
    started = []

    def fail() -> None:
        raise MemoryError("does not fit")

    def wait() -> None:
        time.sleep(0.2)
        started.append(2)

    with pytest.raises(MemoryError, match="does not fit"):
        compile_all([fail, wait, lambda: started.append(3)], lambda: None)
    assert started in ([], [2])


def test_the_loop_itself_compiles_no_program_after_the_first_step(tmp_path, monkeypatch):
    compiled, validated, validate = [], [], Validation.__call__

    def listen(event: str, seconds: float, **fields) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append((fields["fun_name"], threading.current_thread() is threading.main_thread()))

    monkeypatch.setattr(Validation, "__call__", lambda *arguments: validated.append(1) or validate(*arguments))
    at_step(monkeypatch, 0, compiled.clear)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        settings = {"batch__max_buckets": 2, "training__steps": 8, "training__accumulation": 2}
        assert run(tmp_path / "run", **settings) == 0
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert validated
    by_loop = [name for name, is_loop in compiled if is_loop]
    assert not [name for name in by_loop if name.startswith("jit(_")], compiled  # sums of scalars are
    assert "jit(_sums)" in [name for name, is_loop in compiled if not is_loop]  # in a thread, for the validation
    assert not [name for name, is_loop in compiled if not is_loop and "accumulate" in name]


def test_a_fine_tuning_with_another_seed_and_rate_compiles_only_its_start(tmp_path):
    kept = {name: getattr(jax.config, name) for name in (CACHE_DIR, CACHED_SECONDS)}
    (tmp_path / "compiled").mkdir()
    jax.config.update(CACHE_DIR, str(tmp_path / "compiled"))
    jax.config.update(CACHED_SECONDS, 0.0)
    compilation_cache.reset_cache()
    try:
        assert run(tmp_path / "parent", training__steps=2) == 0
        before = set((tmp_path / "compiled").glob("*-cache"))
        child = {"seed": 3, "optimizer__learning_rate": 0.3, "training__init_from": str(tmp_path / "parent")}
        assert run(tmp_path / "child", training__steps=2, **child) == 0
        names = [path.name.split("-")[0] for path in set((tmp_path / "compiled").glob("*-cache")) - before]
    finally:
        for name, value in kept.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
    assert before
    assert set(names) <= {"jit_start_from", "jit__lambda"}  # the initial state and the learning rate
