"""Compilation ahead of a run: its order, its end after an interruption or an error, and that nothing is left over."""

import threading
import time

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from tests.training.tiny import at_step, run
from transformer import threads
from transformer.hooks import warm_up
from transformer.hooks.signals import Interrupted
from transformer.hooks.warm_up import compile_all
from transformer.training.validation import Validation

CACHE_DIR, CACHED_SECONDS = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"


def test_all_jobs_run_in_parallel(monkeypatch, caplog):
    monkeypatch.setattr(threads, "num_workers", lambda _: 3)
    monkeypatch.setattr(warm_up, "MIN_LOGGED_SECONDS", 0.0)
    together, finished = threading.Barrier(3, timeout=10), []
    with caplog.at_level("INFO"):
        compile_all([together.wait] * 6, lambda: finished.append(1))
    assert len(finished) == 6
    assert caplog.messages == ["Compiled 6 programs in 0 s."]


def test_an_error_after_a_job_starts_no_further_one(monkeypatch):
    monkeypatch.setattr(threads, "num_workers", lambda _: 1)
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
    monkeypatch.setattr(threads, "num_workers", lambda _: 1)
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
