"""Saving, retention and resuming."""

import dataclasses
import itertools
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.checkpoints.damages import DAMAGES, rewrite_record, truncate
from tests.checkpoints.saved_runs import (
    OPTIMIZER,
    abstract_state,
    read_run,
    refusal,
    save_run,
    saved_steps,
    state_at,
    steps_with_optimizer,
)
from tests.training.tiny import setup, tiny_config
from transformer.checkpoints import checksums
from transformer.checkpoints.manager import Checkpoints
from transformer.checkpoints.restore import read_progress, steps_in
from transformer.checkpoints.retention import max_checkpoints, steps_to_keep
from transformer.support.errors import UserError
from transformer.training.progress import Progress
from transformer.workdir import Workdir

PROGRESS = Progress(
    1, [[8, 6]], 3, 4, 5, 6, 7, 8.9, 0.5, 1, 1.2, 3.4, 1, 0, {"loss": 0.1, "tokens": 3.0}
)

# TensorStore reports damaged arrays a second time, from its threads.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    return save_run(
        tmp_path_factory.mktemp("saved"), 2, {10: 1.0, 20: 3.0, 30: 3.0, 40: 2.0, 50: None}
    )


def open_run(folder: Path, **changes) -> Checkpoints:
    return Checkpoints(Workdir(folder), tiny_config(checkpoint__every=10, **changes))


def test_unfinished_checkpoints_are_deleted(tmp_path):
    (tmp_path / "checkpoints" / "5.orbax-checkpoint-tmp").mkdir(parents=True)
    save_run(tmp_path, 2, {10: 1.0})
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["10"]


def test_restoring_returns_the_saved_state(tmp_path):
    tiny = setup(tiny_config(training__ema_decay=0.5), OPTIMIZER)
    state = tiny.initializer.create()
    state = jax.tree.map(lambda x: x + 1, state).replace(skipped=np.int32(PROGRESS.skipped))
    state = state.replace(ema_parameters=jax.tree.map(lambda x: x + 1, state.ema_parameters))
    with open_run(tmp_path) as checkpoints:
        assert checkpoints.restore(tiny.initializer.abstract_state) is None
        checkpoints.save(state, PROGRESS)
    with open_run(tmp_path) as checkpoints:
        restored, progress = checkpoints.restore(tiny.initializer.abstract_state)
    assert progress == PROGRESS
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, restored, state)
    # The averaged parameters are those to decode with.
    jax.tree.map(
        np.testing.assert_array_equal, read_run(tmp_path)[0], jax.device_get(state.ema_parameters)
    )


def test_the_newest_checkpoints_and_those_up_to_the_best_are_kept(saved, tmp_path):
    assert saved_steps(saved) == [10, 20, 40, 50]  # of equal scores the first is the best
    assert saved_steps(save_run(tmp_path / "loss", 1, {10: 1.0, 20: 3.0, 30: 2.0}, "loss")) == [
        10,
        30,
    ]
    scores = {10: 1.0, 20: 2.0, 30: 9.0, 40: 3.0, 50: 4.0, 60: 5.0, 70: 6.0}
    assert saved_steps(save_run(tmp_path / "bleu", 3, scores)) == [10, 20, 30, 50, 60, 70]
    scores |= {80: 10.0, 90: 1.0}
    assert saved_steps(save_run(tmp_path / "new best", 2, scores)) == [70, 80, 90]


def test_a_best_checkpoint_between_regular_ones_has_its_neighbours_too():
    settings = tiny_config(checkpoint__every=10, checkpoint__keep=2).checkpoint
    assert steps_to_keep([10, 20, 25, 30, 40, 50], settings, best=25) == {20, 25, 40, 50}


@pytest.mark.parametrize(
    ("keep_every", "eval_every"), list(itertools.product((0, 20), (10, 15, 30)))
)
def test_the_largest_number_of_checkpoints_is_a_bound(keep_every, eval_every):
    settings = tiny_config(
        checkpoint__every=10, checkpoint__keep=3, checkpoint__keep_every=keep_every
    ).checkpoint
    last, counts = 105, []
    for best in range(eval_every, last, eval_every):
        steps: list[int] = []
        for step in sorted({*range(10, last, 10), best, last}):
            steps = sorted(steps_to_keep([*steps, step], settings, best if best <= step else None))
        counts.append(len(steps))
    assert (
        max(counts) <= max_checkpoints(settings, last, eval_every) <= max(counts) + (keep_every > 0)
    )


def test_a_checkpoint_saved_again_has_the_new_progress(saved, tmp_path):
    # Its validation was interrupted, so the run resumes there and validates first.
    shutil.copytree(saved, tmp_path / "run")
    with open_run(tmp_path / "run", checkpoint__keep=2) as checkpoints:
        checkpoints.restore(abstract_state())
        progress = Progress(step=50, best_step=50, best_score=4.0, examples=1)
        checkpoints.save(state_at(50), progress)
        assert saved_steps(tmp_path / "run") == [40, 50]
        assert checkpoints.restore(abstract_state())[1] == progress
        assert checksums.damage(Workdir(tmp_path / "run").checkpoints / "50") is None
        checkpoints.save(state_at(60), dataclasses.replace(progress, step=60))
    assert saved_steps(tmp_path / "run") == [40, 50, 60]


SCORES = {10: 1.0, 20: 3.0, 30: 2.0, 40: 2.0, 50: 2.0, 60: 2.0}


def test_the_best_and_the_newest_two_checkpoints_have_the_state_of_the_optimizer(tmp_path):
    save_run(tmp_path, 4, SCORES)
    assert saved_steps(tmp_path) == [10, 20, 30, 40, 50, 60] and steps_with_optimizer(tmp_path) == [
        20,
        50,
        60,
    ]
    np.testing.assert_array_equal(read_run(tmp_path, "30")[0]["layers"][1]["bias"], [30, -30])
    for step in (50, 60):
        truncate(tmp_path / "checkpoints" / f"{step}")
    with open_run(tmp_path, checkpoint__keep=4) as checkpoints:
        assert checkpoints.restore(abstract_state())[1].step == 20
        assert steps_in(tmp_path / "checkpoints") == [10, 20]  # Orbax would not save 30 before 40
        checkpoints.save(state_at(30), Progress(step=30, best_step=20))
    assert checksums.damage(tmp_path / "checkpoints" / "30") is None
    assert read_progress(tmp_path / "checkpoints" / "30").best_step == 20


def test_a_start_that_fails_removes_nothing(tmp_path):
    save_run(tmp_path, 4, SCORES)
    with pytest.raises(UserError), open_run(tmp_path, checkpoint__keep=4):
        raise UserError("the model has other arrays")
    assert steps_with_optimizer(tmp_path) == [20, 50, 60]


def test_the_newest_two_checkpoints_without_skipped_updates_have_the_state_of_the_optimizer(
    tmp_path,
):
    with open_run(tmp_path, checkpoint__keep=9) as checkpoints:
        for step, skipped in ((10, 0), (20, 0), (30, 0), (40, 1), (50, 2), (60, 3)):
            checkpoints.save(state_at(step), Progress(step=step, skipped=skipped))
    assert steps_with_optimizer(tmp_path) == [20, 30, 50, 60]
    truncate(tmp_path / "checkpoints" / "30")
    with open_run(tmp_path) as checkpoints:
        checkpoints.delete_diverged()
        assert checkpoints.restore(abstract_state())[1].step == 20


class Killed(BaseException):
    """Ends the process at some moment of removing the state of the optimizer."""


def kill(*_, **__) -> None:
    raise Killed


def kill_halfway(folder: Path, **_) -> None:
    (folder / "_METADATA").unlink()
    raise Killed


@pytest.mark.parametrize(
    "moment",
    [
        lambda patch: patch.setattr(checksums.files, "write_text", kill),
        lambda patch: patch.setattr(checksums.shutil, "rmtree", kill),
        lambda patch: patch.setattr(checksums.shutil, "rmtree", kill_halfway),
    ],
    ids=["before the record is written", "after it", "halfway through the files"],
)
def test_a_checkpoint_stays_valid_if_removing_the_optimizer_is_killed(
    saved, tmp_path, monkeypatch, moment
):
    shutil.copytree(saved, tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoints" / "40"
    digest = checksums.digest(checkpoint)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        moment(patch)
        checksums.remove_optimizer(checkpoint)
    for _ in range(2):  # the second removal completes the first
        assert checksums.damage(checkpoint) is None and checksums.digest(checkpoint) == digest
        np.testing.assert_array_equal(
            read_run(tmp_path / "run", "40")[0]["layers"][1]["bias"], [40, -40]
        )
        if (checkpoint / "optimizer").exists():
            checksums.remove_optimizer(checkpoint)
    assert steps_with_optimizer(tmp_path / "run") == [20, 50]


def test_only_training_needs_the_files_of_the_optimizer(saved, tmp_path):
    """A run may remove them while another process reads the checkpoint."""
    checkpoint = shutil.copytree(saved / "checkpoints" / "50", tmp_path / "50")
    shutil.rmtree(checkpoint / "optimizer")
    assert checksums.damage(checkpoint) is None
    assert "optimizer/" in checksums.damage(checkpoint, for_training=True)


def test_saving_does_not_make_a_renamed_workdir_again(tmp_path):
    (tmp_path / "run").mkdir()
    with open_run(tmp_path / "run") as checkpoints:
        checkpoints.save(state_at(10), Progress(step=10))
        checkpoints.manager.wait_until_finished()
        (tmp_path / "run").rename(tmp_path / "renamed")
        assert "was renamed" in refusal(checkpoints.save, state_at(20), Progress(step=20))
    assert saved_steps(tmp_path / "renamed") == [10] and not (tmp_path / "run").exists()


def test_a_run_without_any_state_of_the_optimizer_does_not_start_over(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "run")
    for step in (20, 40, 50):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / f"{step}")
    with open_run(tmp_path / "run") as checkpoints:
        message = refusal(checkpoints.restore, abstract_state())
    assert (
        f"from undamaged parameters with --config.training.init_from={tmp_path / 'run'}" in message
    )


@pytest.mark.parametrize("damage", DAMAGES)
def test_training_falls_back_from_a_damaged_checkpoint(saved, tmp_path, caplog, damage):
    shutil.copytree(saved, tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoints" / "50"
    DAMAGES[damage](checkpoint)
    with open_run(tmp_path / "run") as checkpoints:
        state, progress = checkpoints.restore(abstract_state())
        assert (int(state.step), progress.step) == (40, 40)
        np.testing.assert_array_equal(state.parameters["layers"][1]["bias"], [40, -40])
        (warning,) = [
            record.getMessage() for record in caplog.records if "renamed to" in record.getMessage()
        ]
        assert (
            warning.startswith(f"{checkpoint}: damaged: ") and "renamed to damaged-50-0" in warning
        )
        checkpoints.save(state_at(50), Progress(step=50))
    assert read_run(tmp_path / "run")[1] == 50
    with open_run(tmp_path / "run") as checkpoints:
        assert checkpoints.restore(abstract_state())[1].step == 50


def test_a_run_with_only_damaged_checkpoints_does_not_start_over(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "run")
    for step in saved_steps(saved):
        truncate(tmp_path / "run" / "checkpoints" / str(step))
    for _ in range(2):
        with open_run(tmp_path / "run") as checkpoints:
            assert "no undamaged checkpoint" in refusal(checkpoints.restore, abstract_state())


def test_another_schema_version_is_refused(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoints" / "50"
    rewrite_record(checkpoint, schema_version=2)
    with open_run(tmp_path / "run") as checkpoints:
        message = refusal(checkpoints.restore, abstract_state())
    assert message == f"{checkpoint}: schema_version=2, must be 3; use the commit that made the run"


def test_an_error_for_other_arrays_names_the_configuration_keys_that_differ(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoints" / "50"
    config = checksums.read(checkpoint)["config"]
    del config["checkpoint.keep_every"]  # a key added after the checkpoint was saved
    rewrite_record(checkpoint, config=config)
    expected = abstract_state()
    expected.parameters["layers"][0]["kernel"] = jax.ShapeDtypeStruct((2, 5), np.float32)
    expected.parameters["layers"][2] = {"bias": jax.ShapeDtypeStruct((4,), np.float32)}
    with open_run(tmp_path / "run", model__d_ff=32, checkpoint__keep=2) as checkpoints:
        message = refusal(checkpoints.restore, expected)
    assert "parameters.layers.0.kernel: found (2, 3), expected (2, 5)" in message
    assert "parameters.layers.2.bias: found none, expected (4,)" in message
    assert message.endswith("; the configuration differs in model.d_ff: 16 -> 32")


def test_a_checkpoint_of_an_interruption_displaces_no_regular_one(tmp_path):
    with open_run(tmp_path, checkpoint__keep=2) as checkpoints:
        for step in (10, 20, 23):
            checkpoints.save(state_at(step), Progress(step=step))
        checkpoints.manager.wait_until_finished()
        assert saved_steps(tmp_path) == [10, 20, 23]
        checkpoints.save(state_at(30), Progress(step=30))
    assert saved_steps(tmp_path) == [20, 30]


def test_the_checkpoint_to_roll_back_to_is_kept(tmp_path):
    with open_run(tmp_path, checkpoint__keep=1) as checkpoints:
        for step, skipped in ((10, 0), (20, 0), (30, 4)):
            checkpoints.save(state_at(step), Progress(step=step, skipped=skipped))
    assert saved_steps(tmp_path) == [20, 30]
    with open_run(tmp_path, checkpoint__keep=1) as checkpoints:
        checkpoints.restore(abstract_state())
        checkpoints.save(state_at(40), Progress(step=40, skipped=14))
        checkpoints.delete_diverged()
    assert saved_steps(tmp_path) == [20]


def test_a_roll_back_passes_over_a_damaged_checkpoint(tmp_path):
    with open_run(tmp_path) as checkpoints:
        for step, skipped in ((10, 0), (20, 0), (30, 4)):
            checkpoints.save(state_at(step), Progress(step=step, skipped=skipped))
    truncate(tmp_path / "checkpoints" / "20")
    with open_run(tmp_path) as checkpoints:
        assert checkpoints.restore(abstract_state())[1].step == 30
        checkpoints.delete_diverged()
        assert steps_in(tmp_path / "checkpoints") == [10]
        assert checkpoints.restore(abstract_state())[1].step == 10


def test_multiples_of_keep_every_are_kept(tmp_path):
    with open_run(tmp_path, checkpoint__keep=1, checkpoint__keep_every=20) as checkpoints:
        for step in (10, 20, 30, 40, 50):
            checkpoints.save(state_at(step), Progress(step=step))
    assert saved_steps(tmp_path) == [20, 40, 50]


def test_a_roll_back_deletes_the_checkpoints_after_skipped_updates(tmp_path):
    with open_run(tmp_path) as checkpoints:
        for step, skipped in ((10, 0), (20, 0), (30, 4), (40, 14)):
            checkpoints.save(state_at(step), Progress(step=step, skipped=skipped))
        checkpoints.delete_diverged()
        assert saved_steps(tmp_path) == [10, 20]
        assert checkpoints.restore(abstract_state())[1].step == 20
        checkpoints.save(state_at(30), Progress(step=30))
    assert saved_steps(tmp_path) == [10, 20, 30]
    assert read_progress(Workdir(tmp_path).checkpoints / "30").step == 30
