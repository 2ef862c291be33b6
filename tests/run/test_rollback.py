"""Losses and gradients that are not finite: skipped updates, rollbacks, and the end of the run."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training.tiny import (
    at_step,
    distance,
    make_batch,
    record,
    remove_layers,
    run,
    setup,
    tiny_config,
)
from transformer.checkpoints.restore import choose_step
from transformer.data.batches.loader import Loader
from transformer.hooks.endings import Watchdog
from transformer.run.preparation import Run
from transformer.support.special_tokens import PAD
from transformer.training.compiled_step import CompiledStep
from transformer.training.train_step import Totals

pytestmark = pytest.mark.long

MARK = 7  # a token that marks a bad batch
SETTINGS = {"training__steps": 12, "training__max_skipped": 2, "training__ema_decay": 0.9}


@pytest.fixture(autouse=True)
def without_layers(monkeypatch):
    remove_layers(monkeypatch)


def crash() -> None:
    raise ZeroDivisionError("a crash")


def poison(monkeypatch, is_bad) -> None:
    """Makes loss and gradients NaN where the traced boolean `is_bad(step, batch)` holds."""
    gradients = CompiledStep._gradients

    def poisoned(self, state, batch, part, seed):
        trees, sums = gradients(self, state, batch, part, seed)
        factor = jnp.where(is_bad(state.step, batch), jnp.nan, 1.0)
        return Totals(
            jax.tree.map(lambda x: x * factor, trees), sums.replace(loss=sums.loss * factor)
        )

    monkeypatch.setattr(CompiledStep, "_gradients", poisoned)


def test_a_skipped_update_changes_only_counts(monkeypatch):
    poison(monkeypatch, lambda step, batch: (step == 1) | (step == 2))
    tiny = setup(tiny_config(training__ema_decay=0.5))
    batch = make_batch([(3, 4)], 2, 6, seed=0)
    one, _ = tiny.after([batch])
    three, metrics = tiny.after([batch], [batch], [batch])
    assert (int(three.step), int(three.skipped), bool(metrics["skipped"])) == (3, 2, True)
    for name in ("parameters", "optimizer_state", "ema_parameters"):
        jax.tree.map(np.testing.assert_array_equal, getattr(one, name), getattr(three, name))
    assert all(np.asarray(value) == 0 for value in jax.tree.leaves(metrics["sums"]))
    four, metrics = tiny.after([batch], [batch], [batch], [batch])
    assert int(four.skipped) == 0 and float(metrics["sums"].tokens) == 5
    assert distance(four.parameters, one.parameters) > 1e-4


@pytest.mark.slow
def test_an_update_is_skipped_if_only_its_gradient_is_not_finite(monkeypatch):
    gradients = CompiledStep._gradients

    def overflowing(self, state, batch, part, seed):
        trees, sums = gradients(self, state, batch, part, seed)
        return Totals(jax.tree.map(lambda x: x * jnp.float32(np.inf), trees), sums)

    monkeypatch.setattr(CompiledStep, "_gradients", overflowing)
    state, metrics = setup(tiny_config()).after([make_batch([(3, 4)], 2, 6, seed=0)])
    assert int(state.skipped) == 1 and all(
        np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.parameters)
    )


# With log_every=1 the skipped update has no line, and the next one counts it.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("every", "skipped"), [(2, [0, 0, 1, 0, 0, 0]), (1, [0] * 4 + [1] + [0] * 6)]
)
def test_a_skipped_update_is_counted_in_the_record(tmp_path, monkeypatch, capsys, every, skipped):
    poison(monkeypatch, lambda step, batch: step == 4)
    assert run(tmp_path / "run", **SETTINGS, training__log_every=every) == 0
    lines = [line for line in record(tmp_path / "run") if line["split"] == "train"]
    assert [line["skipped"] for line in lines] == skipped
    assert all(np.isfinite(list(line.values())[2:]).all() for line in lines)
    assert "(1 updates skipped: not finite)" in capsys.readouterr().err
    assert not (tmp_path / "run" / "events.jsonl").exists()


def poison_first_order(monkeypatch, is_bad) -> None:
    """Makes steps bad before the first rollback, by a mark in the batches that the loader makes
    until then.
    """
    poison(monkeypatch, lambda step, batch: is_bad(step) & (batch["source"][-1, -1] == MARK))
    load = Loader.__next__

    def marking(self):
        position, arrays, stats = load(self)
        mark = MARK if position.num_rollbacks == 0 else PAD
        return position, arrays | {"source": arrays["source"].at[-1, -1].set(mark)}, stats

    monkeypatch.setattr(Loader, "__next__", marking)


@pytest.mark.slow
def test_too_many_skipped_updates_in_a_row_are_remembered_until_the_next_log_step(
    tmp_path, monkeypatch, capsys
):
    poison_first_order(monkeypatch, lambda step: (step == 4) | (step == 5))
    settings = SETTINGS | {"training__steps": 8, "training__log_every": 8}
    assert run(tmp_path / "run", **settings) == 0
    errors = capsys.readouterr().err
    assert "Step 8: 2 updates in a row were skipped" in errors and "Going back to step 4" in errors


def test_too_many_skipped_updates_roll_the_run_back_and_change_the_order_of_its_data(
    tmp_path, monkeypatch, capsys
):
    poison_first_order(monkeypatch, lambda step: step >= 6)
    with monkeypatch.context() as patch:
        visits = itertools.count(1)
        # after the rollback, before it is in a checkpoint
        at_step(patch, 7, lambda: next(visits) == 2 and crash())
        assert run(tmp_path / "run", **SETTINGS) == 1
    assert run(tmp_path / "run", **SETTINGS) == 0
    (event,) = [
        json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    ]
    assert event == {"event": "rollback", "number": 1, "step": 8, "to_step": 6}
    steps = [(line["split"], line["step"]) for line in record(tmp_path / "run")]
    assert steps == sorted(set(steps), key=lambda pair: (pair[1], pair[0] == "valid"))
    assert [step for split, step in steps if split == "train"] == [2, 4, 6, 8, 10, 12]
    errors = capsys.readouterr().err
    assert "Going back to step 6, with the data in another order (1 of at most 3 times)." in errors
    assert choose_step(tmp_path / "run", "last") == 12


@pytest.mark.slow
def test_no_time_limit_applies_while_a_checkpoint_is_restored(tmp_path, monkeypatch):
    poison_first_order(monkeypatch, lambda step: step >= 6)
    calls, before_restoring, restore = ["new"], [], Run.restore_or_initialize

    def observed(self, checkpoints):
        before_restoring.append(calls[-1])
        return restore(self, checkpoints)

    monkeypatch.setattr(Watchdog, "start", lambda self: calls.append("start"))
    monkeypatch.setattr(Watchdog, "stop", lambda self: calls.append("stop"))
    monkeypatch.setattr(Run, "restore_or_initialize", observed)
    assert run(tmp_path / "run", **SETTINGS) == 0
    assert before_restoring == ["new", "stop"]


@pytest.mark.slow
def test_a_run_that_keeps_diverging_ends_with_a_diagnosis(tmp_path, monkeypatch, capsys):
    poison(monkeypatch, lambda step, batch: step >= 6)
    settings = SETTINGS | {"training__max_rollbacks": 1, "model__output_bias": True}
    assert run(tmp_path / "run", **settings) == 2
    errors = capsys.readouterr().err.splitlines()
    assert any("output_bias: norm of parameters" in line for line in errors)
    assert (
        errors[-1].startswith("error: step 8, ")
        and "training diverged: 2 updates in a row" in errors[-1]
    )
    assert "rollbacks: 1" in errors[-1]
    (line,) = [
        line for line in errors if "encoder.layers.0.self_attention: norm of parameters" in line
    ]
    assert line.endswith("of gradients nan")
    assert not (tmp_path / "run" / "complete.json").exists()
    # A new start ends in the same way.
    assert run(tmp_path / "run", **settings) == 2
