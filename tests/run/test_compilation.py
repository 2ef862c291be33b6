"""Compilation ahead: all programs are compiled before the first step, and none later."""

import threading
import time
from collections.abc import Callable
from unittest import mock

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from tests.training.tiny import at_step, remove_layers, run
from transformer.data.batches.epoch_plan import Bucket
from transformer.hooks.endings import Interrupted
from transformer.run import loop
from transformer.support import workers
from transformer.training.compiled_step import CompiledStep
from transformer.training.state import TrainState
from transformer.training.validation import Validation

CACHE_DIR, CACHED_SECONDS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
)
BUCKETS = [Bucket(8, 16, 16)]
INITIAL = TrainState(0, 0, {"initial": 1}, (), None)


def start(jobs: list[Callable[[], object]], poll: Callable[[], None] = lambda: None) -> mock.Mock:
    """Compiles the programs of a step and a validation, which share the jobs, and returns the
    validation.
    """
    step, validation = mock.Mock(CompiledStep), mock.Mock(Validation)
    step.compilations = lambda *given: jobs[:1] if given == (INITIAL, BUCKETS) else []
    validation.compilations = lambda given: jobs[1:] if given == INITIAL.parameters else []
    loop.compile_programs(
        mock.Mock(train_step=step, validation=validation), INITIAL, BUCKETS, mock.Mock(poll=poll)
    )
    return validation


def test_all_programs_are_compiled_in_parallel_before_the_first_step(monkeypatch, caplog):
    monkeypatch.setattr(workers, "num_workers", lambda _: 3)
    monkeypatch.setattr(loop, "MIN_LOGGED_SECONDS", 0.0)
    together, polls = threading.Barrier(3, timeout=10), []
    with caplog.at_level("INFO"):
        validation = start([together.wait] * 6, lambda: polls.append(1))
    validation.warm_up.assert_called_once_with(INITIAL.parameters)
    assert len(polls) == 7  # equally many in all processes
    assert caplog.messages == ["Compiled 6 programs in 0 s."]


def test_an_error_after_a_job_starts_no_further_one(monkeypatch):
    monkeypatch.setattr(workers, "num_workers", lambda _: 1)
    started = []
    jobs = (
        [lambda: started.append(1)]
        + [lambda: time.sleep(0.2) or started.append(2)]
        + [lambda: started.append(3)] * 4
    )

    def interrupt() -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        start(jobs, interrupt)
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
        start([fail, wait, lambda: started.append(3)])
    assert started in ([], [2])


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({"training__accumulation": 2}, set()),
        ({"training__accumulation_changes": "3:2"}, {"jit(_update)"}),
    ],
)
def test_no_program_is_compiled_after_the_first_step_began(tmp_path, monkeypatch, changes, needed):
    compiled, validated, validate = [], [], Validation.__call__

    def listen(event: str, seconds: float, **fields) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(fields["fun_name"])

    monkeypatch.setattr(
        Validation, "__call__", lambda *arguments: validated.append(1) or validate(*arguments)
    )
    at_step(monkeypatch, 0, lambda: before.extend(compiled) or compiled.clear())
    remove_layers(monkeypatch)
    before: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        assert run(tmp_path / "run", batch__max_buckets=2, training__steps=4, **changes) == 0
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert validated
    assert {"jit(_accumulate)", "jit(_apply_gradients)", "jit(_sums)"} | needed <= set(before)
    # sums of scalars are
    assert not [name for name in compiled if name.startswith("jit(_")], compiled


@pytest.mark.slow
def test_a_fine_tuning_with_another_seed_and_rate_compiles_only_its_start(tmp_path, monkeypatch):
    remove_layers(monkeypatch)
    kept = {name: getattr(jax.config, name) for name in (CACHE_DIR, CACHED_SECONDS)}
    (tmp_path / "compiled").mkdir()
    jax.config.update(CACHE_DIR, str(tmp_path / "compiled"))
    jax.config.update(CACHED_SECONDS, 0.0)
    compilation_cache.reset_cache()
    try:
        assert run(tmp_path / "parent", training__steps=2) == 0
        before = set((tmp_path / "compiled").glob("*-cache"))
        child = {
            "seed": 3,
            "optimizer__learning_rate": 0.3,
            "training__init_from": str(tmp_path / "parent"),
        }
        assert run(tmp_path / "child", training__steps=2, **child) == 0
        names = [
            path.name.split("-")[0]
            for path in set((tmp_path / "compiled").glob("*-cache")) - before
        ]
    finally:
        for name, value in kept.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
    assert before
    # the initial state and the learning rate
    assert set(names) <= {"jit_start_from", "jit__lambda"}
