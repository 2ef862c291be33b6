"""Runs by Schedule-Free AdamW: training continues from y and z, and everything else reads x."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.run.test_rollback import poison, poison_first_order
from tests.training.tiny import (
    at_step,
    distance,
    flags,
    make_batch,
    record,
    remove_layers,
    run,
    setup,
    tiny_config,
)
from transformer import train
from transformer.checkpoints import loaded_models
from transformer.checkpoints.restore import choose_step, named_leaves, read_arrays, read_parameters
from transformer.config import cli, loading
from transformer.run import dry_run, preparation
from transformer.support.errors import UserError
from transformer.training.held_out import held_out_means
from transformer.training.optimizer import make_optimizer, make_schedule
from transformer.workdir import Workdir

FREE = {
    "optimizer__name": "schedule_free_adamw",
    "optimizer__schedule": "constant",
    "optimizer__learning_rate": 0.02,
    "optimizer__weight_decay": 0.1,
    "optimizer__clip_norm": 1.0,
}
ITEMS = ("parameters", "optimizer", "ema_parameters")
STEPS = 10


@pytest.fixture(autouse=True)
def without_layers(monkeypatch):
    remove_layers(monkeypatch)


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Path:
    """Returns a run of ten steps, with checkpoints of steps 3, 6, 9 and 10."""
    path = tmp_path_factory.mktemp("straight") / "run"
    with pytest.MonkeyPatch.context() as patch:
        remove_layers(patch)
        assert run(path, training__steps=STEPS, checkpoint__keep=9, **FREE) == 0
    return path


def checkpoint(workdir: Path, step: int = STEPS) -> Path:
    return Workdir(workdir).checkpoints / str(step)


def average(workdir: Path, step: int = STEPS) -> dict:
    """Returns x = (y - 0.1 z) / 0.9, by name, from what a checkpoint has for training."""
    y, z = (
        named_leaves(tree)
        for tree in (
            read_arrays(checkpoint(workdir, step), "parameters"),
            read_arrays(checkpoint(workdir, step), "optimizer")["z"],
        )
    )
    return {name: (y[name] - 0.1 * z[name]) / 0.9 for name in y}


def assert_close(tree: dict, expected: dict) -> None:
    leaves = named_leaves(jax.device_get(tree))
    assert leaves.keys() == expected.keys()
    for name, leaf in leaves.items():
        np.testing.assert_allclose(leaf, expected[name], rtol=0, atol=1e-6)


def load(workdir: Path, step: int = STEPS, count: int = 1) -> dict:
    """Returns the parameters that evaluate, translate, export and --average decode with."""
    return loaded_models.load([str(workdir)], str(step), count, []).parameters[0]


def test_commands_load_the_average_and_the_record_is_of_the_average(straight):
    models = loaded_models.load([str(straight)], "best", 1, [])
    assert_close(models.parameters[0], average(straight))
    both = [average(straight, step) for step in (9, STEPS)]
    mean = {name: (both[0][name] + both[1][name]) / 2 for name in both[0]}
    assert_close(load(straight, STEPS, count=2), mean)
    # Older checkpoints no longer have z.
    assert not (checkpoint(straight, 6) / "optimizer").exists()
    assert (
        distance(load(straight, 6), read_parameters(checkpoint(straight, 6), "parameters")) > 1e-3
    )
    # The average is not what training continues from.
    y = read_parameters(checkpoint(straight), "parameters")
    assert distance(y, models.parameters[0]) > 1e-3

    losses = [
        held_out_means(models.config, models.tokenizer, models.graphs[0], parameters, "valid")[
            "nll"
        ]
        for parameters in (models.parameters[0], y)
    ]
    line = record(straight)[-1]
    assert (line["split"], line["step"]) == ("valid", STEPS)
    assert line["nll"] == pytest.approx(losses[0], rel=1e-5)
    assert abs(line["nll"] - losses[1]) > 1e-4


@pytest.mark.slow
def test_an_extended_run_that_is_killed_continues_bit_for_bit(straight, tmp_path, monkeypatch):
    def crash() -> None:
        raise ZeroDivisionError("a crash")

    path = tmp_path / "run"
    short = {"training__steps": 7, "data__cache_dir": straight.parent / "cache"} | FREE
    assert run(path, **short) == 0
    extend = train.make_parser(), train.main, [f"--workdir={path}", f"--extend={STEPS}"]
    with monkeypatch.context() as patch:
        at_step(patch, 9, crash)
        assert cli.execute(*extend) == 1
    assert cli.execute(*extend) == 0
    for item in ITEMS:
        trees = (read_arrays(checkpoint(each), item) for each in (path, straight))
        jax.tree.map(np.testing.assert_array_equal, *trees)
    # Restoring a checkpoint leaves the state as it was saved.
    assert record(path)[-1]["nll"] == record(straight)[-1]["nll"]


@pytest.mark.slow
def test_a_run_rolls_back_to_y_and_z(tmp_path, monkeypatch, capsys):
    poison_first_order(monkeypatch, lambda step: step >= 6)
    path = tmp_path / "run"
    assert run(path, training__steps=8, training__max_skipped=2, **FREE) == 0
    assert "Going back to step 6" in capsys.readouterr().err
    step = choose_step(path, "last")
    assert step == 8
    assert_close(load(path, step), average(path, step))


@pytest.mark.slow
def test_a_child_starts_from_the_average_or_from_the_state_of_the_optimizer(straight, tmp_path):
    def initial_state(name: str, **changes):
        changes = {key.replace("__", "."): value for key, value in changes.items()}
        changes["training.init_from"] = f"{straight}:{STEPS}"
        config = loading.with_values(loading.load(straight), changes)
        with preparation.open_workdir(tmp_path / name, config) as (workdir, config):
            return preparation.prepare(config, workdir).initial_state()

    fresh = initial_state("fresh")
    assert_close(fresh.parameters, average(straight))
    assert_close(fresh.eval_parameters, average(straight))
    continued = initial_state("continued", training__init_optimizer=True)
    y = named_leaves(read_arrays(checkpoint(straight), "parameters"))
    assert_close(continued.parameters, y)
    assert_close(continued.eval_parameters, average(straight))
    assert continued.optimizer_state.weight_sum > 0
    with pytest.raises(UserError, match="does not fit this run.*optimizer.beta1"):
        initial_state("other", training__init_optimizer=True, optimizer__beta1=0.5)
    # An optimizer without an average takes x, too.
    plain = initial_state("plain", optimizer__name="adamw")
    assert_close(plain.eval_parameters, average(straight))


def tiny_setup(**changes):
    config = tiny_config(**FREE, optimizer__warmup_steps=2, model__dropout=0.0, **changes)
    schedule = make_schedule(config.optimizer, config.model.d_model, 10)
    return setup(config, make_optimizer(config.optimizer, schedule), schedule=schedule)


def test_a_skipped_update_changes_neither_sequence(monkeypatch):
    poison(monkeypatch, lambda step, batch: step == 1)
    tiny = tiny_setup()
    batch = make_batch([(3, 4)], 2, 6, seed=0)
    one, _ = tiny.after([batch])
    two, _ = tiny.after([batch], [batch])
    assert int(two.skipped) == 1
    for name in ("parameters", "optimizer_state", "averaged_parameters"):
        jax.tree.map(np.testing.assert_array_equal, getattr(one, name), getattr(two, name))


@pytest.mark.slow
def test_accumulated_batches_make_one_update():
    tiny = tiny_setup()
    batch = make_batch([(3, 4)], 2, 6, seed=0)
    empty = make_batch([], 2, 6, seed=0)
    whole, _ = tiny.after([batch], [batch])
    accumulated, _ = tiny.after([batch, empty], [batch, empty])
    assert distance(accumulated.averaged_parameters, whole.averaged_parameters) < 1e-4
    assert accumulated.optimizer_state.weight_sum == whole.optimizer_state.weight_sum


def test_the_estimates_count_both_sequences_the_moment_and_the_saved_average():
    tiny = tiny_setup()
    abstract = tiny.initializer.abstract_state
    size = dry_run.num_bytes(abstract.parameters)
    # z and the second moment; three counts, the largest rate and the sum of weights
    assert dry_run.num_bytes(abstract.optimizer_state) == 2 * size + 5 * 4
    batch = make_batch([(3, 4)], 2, 6, seed=0)
    program = tiny.compiled_update(tiny.initializer.create(), batch)
    assert program.memory_analysis().argument_size_in_bytes >= 3 * size


@pytest.mark.slow
def test_the_plan_counts_the_average_in_each_checkpoint(tmp_path, capsys):
    argv = flags(tmp_path / "run", training__steps=8, model__d_model=256, **FREE)
    assert cli.execute(train.make_parser(), train.main, [*argv, "--plan"]) == 0
    plan = capsys.readouterr().out
    (count,) = re.findall(r"parameters  in all: ([\d,]+)", plan)
    mebibytes = 4 * int(count.replace(",", "")) / 2**20
    assert mebibytes > 2
    # y and x; z and the second moment
    (sizes,) = re.findall(r"at most \d, (\d+) MiB each, and (\d+) MiB in", plan)
    assert [float(size) for size in sizes] == pytest.approx([2 * mebibytes] * 2, abs=0.5)
