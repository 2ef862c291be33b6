"""Gradients and updates on every mesh, and differences that are found."""

import os

import jax
import numpy as np
import pytest

from scripts.verification import processes, resume, search, training
from transformer.support.errors import UserError


def test_the_meshes_are_all_that_the_model_allows():
    found = list(training.meshes(4))
    assert len(found) == len({tuple(mesh.values()) for mesh in found}) == 6
    assert {"data": 1, "fsdp": 2, "tensor": 2} in found
    assert all(np.prod(list(mesh.values())) == 4 for mesh in found)
    assert list(training.meshes(1)) == []
    assert list(training.meshes(3)) == [
        {"data": 3, "fsdp": 1, "tensor": 1},
        {"data": 1, "fsdp": 3, "tensor": 1},
    ]


def test_a_wrong_gradient_or_loss_fails():
    exact = {"a": np.ones((2, 3)), "b": np.full(3, 1e-9)}
    shifted = exact | {"a": exact["a"] + np.eye(2, 3) * 1e-2}

    def passed(gradients, loss):
        return [
            outcome.passed
            for outcome in training.compare("x", (gradients, loss), (exact, 2.0), 1e-4)
        ]

    # rounding, beside the largest gradient
    assert passed(exact | {"b": np.full(3, 1.2e-9)}, 2.0) == [True, True]
    assert passed(shifted, 2.0) == [True, False]
    assert passed(exact, 2.001) == [False, True]
    assert passed(exact | {"b": np.full(3, np.nan)}, np.nan) == [False, False]


def test_results_come_from_another_process_with_its_own_environment():
    found = list(
        processes.results_of(
            "tests.scripts.verification.checks:passes", environment=processes.EXACT
        )
    )
    assert [outcome.name for outcome in found] == ["precision highest, JAX False"]
    with pytest.raises(UserError, match="exit code -11"):
        list(processes.results_of("tests.scripts.verification.checks:crashes", environment={}))
    with pytest.raises(UserError, match="^the disk is full$"):
        list(processes.results_of("tests.scripts.verification.checks:is_refused", environment={}))


@pytest.mark.slow
def test_a_process_that_hangs_is_ended_and_so_are_its_children(monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "LIMIT", 5.0)
    results = processes.results_of(
        "tests.scripts.verification.checks:hangs", str(tmp_path), environment={}
    )
    pid = next(results)
    with pytest.raises(UserError, match="no result for 5 s"):
        next(results)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_search_that_finds_other_translations_fails(monkeypatch):
    expected = [[number] for number in range(search.SENTENCES)]
    monkeypatch.setattr(search, "results_of", lambda *_, **__: iter([({}, expected)]))
    for changed, passed in ((0, True), (2, True), (3, False)):
        monkeypatch.setattr(search, "translations", lambda _, n=changed: [[-1]] * n + expected[n:])
        (outcome,) = search.check_search()
        assert outcome.passed is passed


@pytest.mark.slow  # a step operation by operation, and one for every mesh of the simulated devices
def test_this_machine_computes_gradients_updates_and_searches():
    outcomes = [*training.check_all(), *search.check_search(), *search.check_faults()]
    assert len(outcomes) > 6 + 2 * (jax.device_count() > 1)
    assert [outcome.name for outcome in outcomes if not outcome.passed] == []


@pytest.mark.slow  # three starts of a run
def test_a_killed_run_that_differs_fails(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))  # restored at the end
    assert all(outcome.passed for outcome in resume.check_resume())
    digests = resume.KillableRun.digests
    monkeypatch.setattr(
        resume.KillableRun, "digests", lambda self: digests(self) | {"record": self.folder.name}
    )
    first, _ = resume.check_resume()
    assert (
        not first.passed and first.name == "parts of a killed and resumed run that differ (record)"
    )
