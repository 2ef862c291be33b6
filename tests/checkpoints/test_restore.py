"""Choosing checkpoints and reading their parameters."""

import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.checkpoints.damages import DAMAGES, HUGE, declare_huge
from tests.checkpoints.saved_runs import abstract_state, read_run, refusal, save_run
from tests.training.tiny import tiny_config
from transformer.checkpoints import restore
from transformer.checkpoints.manager import Checkpoints
from transformer.checkpoints.restore import choose_step, choose_steps, load_parameters
from transformer.workdir import Workdir

# TensorStore reports damaged arrays a second time, from its threads.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """Returns a run with checkpoints 10, 20 (the best), 40 and 50."""
    return save_run(
        tmp_path_factory.mktemp("saved"), 2, {10: 1.0, 20: 3.0, 30: 3.0, 40: 2.0, 50: None}
    )


def load(workdir: Path, steps: list[int]) -> dict:
    return load_parameters(workdir, steps, abstract_state().parameters, tiny_config())


@pytest.mark.parametrize(
    ("which", "average", "steps"),
    [
        ("best", 1, [20]),
        ("last", 1, [50]),
        ("20", 1, [20]),
        ("50", 2, [40, 50]),
        ("best", 2, [10, 20]),
    ],
)
def test_the_chosen_checkpoints_are_averaged(saved, which, average, steps):
    assert choose_steps(saved, which, average, 10) == steps
    parameters, mean = load(saved, steps), np.float32(np.mean(steps))
    np.testing.assert_array_equal(parameters["layers"][0]["kernel"], np.full((2, 3), mean))
    np.testing.assert_array_equal(parameters["layers"][1]["bias"], [mean, -mean])
    assert all(
        isinstance(leaf, np.ndarray) and leaf.dtype == np.float32
        for leaf in jax.tree.leaves(parameters)
    )


@pytest.mark.parametrize(
    ("saved", "every", "step", "average", "expected"),
    [
        # without the best between multiples,
        ((60, 70, 75, 80, 90, 100), 10, 100, 4, [70, 80, 90, 100]),
        ((60, 70, 75, 80, 90, 100), 10, 75, 3, [60, 70, 75]),  # unless it is chosen
        ((10, 20, 30, 35), 10, 35, 3, [20, 30, 35]),  # the last step, or an interruption
        ((4, 6, 18, 20), 2, 20, 4, 2),  # a gap after an early best
        ((10, 20), 10, 20, 3, 2),  # fewer than asked for
    ],
)
def test_averages_take_consecutive_multiples(tmp_path, saved, every, step, average, expected):
    """`expected` is the number that can be averaged if there are fewer than `average`."""
    for saved_step in saved:
        (tmp_path / "checkpoints" / str(saved_step)).mkdir(parents=True)
    if isinstance(expected, list):
        assert choose_steps(tmp_path, str(step), average, every) == expected
    else:
        message = refusal(choose_steps, tmp_path, str(step), average, every)
        listed = f"has {', '.join(map(str, saved))}: average at most {expected}, "
        assert message.startswith(f"--average={average}: ") and listed in message


def test_a_workdir_can_be_relative_to_the_current_folder(saved, monkeypatch):
    monkeypatch.chdir(saved.parent)
    assert read_run(Path(saved.name))[1] == 50


def test_a_checkpoint_that_does_not_exist_is_refused(saved, tmp_path):
    assert f"--workdir={tmp_path}: has no checkpoint yet" in refusal(choose_step, tmp_path, "best")
    for name in ("30", "frist", "-1", "5.0", ""):
        message = refusal(choose_step, saved, name)
        assert (
            f"--checkpoint={name}: must be best, last or one of the steps 10, 20, 40, 50" in message
        )
    shutil.copytree(saved, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "20")
    assert "20 is missing; name last or one of the steps 10, 40, 50" in refusal(
        choose_step, tmp_path / "run", "best"
    )


def test_an_unfinished_checkpoint_is_ignored(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "run")
    shutil.copytree(
        saved / "checkpoints" / "50", tmp_path / "run" / "checkpoints" / "60.orbax-checkpoint-tmp"
    )
    assert choose_step(tmp_path / "run", "last") == 50


@pytest.mark.parametrize("damage", DAMAGES)
def test_decoding_falls_back_from_a_damaged_checkpoint_unless_its_step_is_named(
    saved, tmp_path, caplog, damage
):
    shutil.copytree(saved, tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoints" / "50"
    DAMAGES[damage](checkpoint)
    assert choose_step(tmp_path / "run", "last") == 40
    (warning,) = [message for message in caplog.messages if "using the previous" in message]
    assert warning.startswith(f"{checkpoint}: damaged: ")
    assert f"{checkpoint}: this checkpoint cannot be read (" in refusal(
        load, tmp_path / "run", [50]
    )


def test_a_checkpoint_that_declares_terabytes_is_refused_before_it_is_read(
    saved, tmp_path, monkeypatch
):
    shutil.copytree(saved, tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoints" / "50"
    declare_huge(checkpoint)
    with monkeypatch.context() as patch:
        patch.setattr(
            restore,
            "read_arrays",
            lambda *_: pytest.fail("arrays are read before shapes are compared"),
        )
        message = refusal(load, tmp_path / "run", [40, 50])
    assert f"parameters.layers.0.kernel: found {HUGE}, expected (2, 3)" in message
    with Checkpoints(Workdir(tmp_path / "run"), tiny_config()) as checkpoints:
        assert f"found {HUGE}, expected (2, 3)" in refusal(checkpoints.restore, abstract_state())
