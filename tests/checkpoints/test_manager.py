"""Checkpoints: what is saved comes back, what is kept, what decoding gets, and how damage is told."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

from tests.training.tiny import setup, tiny_config
from transformer.checkpoints import checksums as seal
from transformer.checkpoints.manager import Checkpoints
from transformer.checkpoints.restore import load_parameters, read_progress
from transformer.errors import UserError
from transformer.training.progress import Progress
from transformer.training.state import TrainState
from transformer.workdir import Workdir

SCORES = {10: 1.0, 20: 3.0, 30: 3.0, 40: 2.0}
PROGRESS = Progress(1, 2, 3, 4, 5, 6, 7, 8.9, 1, 1.2, 1, 0, {"loss": 0.1, "tokens": 3.0})


# TensorStore tells of damaged arrays once more from threads of its own, where nobody can catch it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def tiny():
    return setup(tiny_config(training__ema_decay=0.5), optax.adam(optax.constant_schedule(0.1)))


def state_at(step: int, with_average: bool = False) -> TrainState:
    """A state whose parameters, under names as a model's, are multiples of its step."""
    parameters = {"layers": {0: {"kernel": np.full((2, 3), step, np.float32)}, 1: {"bias": np.float32([step, -step])}}}
    average = jax.tree.map(lambda x: x + 0.5, parameters) if with_average else None
    return jax.device_put(
        TrainState(
            np.int32(step), np.int32(0), parameters, optax.adam(optax.constant_schedule(0.1)).init(parameters), average
        )
    )


def save_run(folder: Path, keep: int, scores: dict[int, float | None], metric: str, with_average=False) -> Path:
    """A run that was saved at these steps, each validated if it has a score."""
    config = tiny_config(checkpoint__every=10, checkpoint__keep=keep, checkpoint__best_metric=metric)
    progress = Progress()
    with Checkpoints(Workdir(folder), config) as checkpoints:
        for step, score in scores.items():
            progress = dataclasses.replace(progress, step=step)
            progress = progress if score is None else progress.validated(score, metric)
            checkpoints.save(state_at(step, with_average), progress)
    return folder


def kept(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in Workdir(folder).checkpoints.iterdir())


def refusal(function, *arguments) -> str:
    with pytest.raises(UserError) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    return save_run(tmp_path_factory.mktemp("saved"), 2, {**SCORES, 50: None}, "bleu")


def test_what_is_saved_comes_back(tiny, tmp_path):
    state, config = tiny.initializer(), tiny_config()
    state = jax.tree.map(lambda x: x + 1, state).replace(skipped=np.int32(PROGRESS.skipped))
    state = state.replace(average=jax.tree.map(lambda x: x + 1, state.average))
    with Checkpoints(Workdir(tmp_path), config) as checkpoints:
        assert checkpoints.restore(tiny.initializer.abstract_state) is None
        checkpoints.save(state, PROGRESS)
    with Checkpoints(Workdir(tmp_path), config) as checkpoints:
        restored, progress = checkpoints.restore(tiny.initializer.abstract_state)
    assert progress == PROGRESS
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, restored, state)
    parameters, step, steps = load_parameters(tmp_path, "best", 1)
    assert (step, steps) == (1, [1])
    # Decoding gets the averages of a run that keeps them.
    jax.tree.map(np.testing.assert_array_equal, parameters, jax.device_get(state.average))


def test_the_newest_and_the_first_of_the_best_are_kept(saved, tmp_path):
    assert kept(saved) == [20, 40, 50]
    assert kept(save_run(tmp_path / "other", 1, SCORES, "loss")) == [10, 40]
    shutil.copytree(saved, tmp_path / "run")
    workdir = Workdir(tmp_path / "run")
    with Checkpoints(workdir, tiny_config(checkpoint__every=10, checkpoint__keep=2)) as checkpoints:
        # 50 is there already: it takes the place of the one that was left when its validation was interrupted.
        checkpoints.save(state_at(50), Progress(step=50, best_step=20, best_score=3.0, examples=1))
        checkpoints.save(state_at(60), Progress(step=60, best_step=20, best_score=3.0))
    assert kept(tmp_path / "run") == [20, 50, 60]
    assert read_progress(workdir.checkpoints / "50").examples == 1


@pytest.mark.parametrize(
    ("which", "average", "step", "steps"),
    [("best", 1, 20, [20]), ("last", 1, 50, [50]), ("20", 1, 20, [20]), ("50", 2, 50, [40, 50]), ("20", 2, 20, [20])],
)
def test_the_checkpoints_that_decoding_may_name(saved, which, average, step, steps):
    parameters, found, averaged = load_parameters(saved, which, average)
    assert (found, averaged) == (step, steps)
    mean = np.float32(sum(steps) / len(steps))
    np.testing.assert_array_equal(parameters["layers"][0]["kernel"], np.full((2, 3), mean))
    np.testing.assert_array_equal(parameters["layers"][1]["bias"], [mean, -mean])
    assert all(isinstance(leaf, np.ndarray) and leaf.dtype == np.float32 for leaf in jax.tree.leaves(parameters))


def test_a_workdir_may_be_named_relative_to_the_current_folder(saved, monkeypatch):
    monkeypatch.chdir(saved.parent)
    _, step, _ = load_parameters(Path(saved.name), "last", 1)
    assert step == 50


def test_names_that_no_checkpoint_has_are_refused(saved, tmp_path):
    assert f"--workdir={tmp_path}: has no checkpoint yet" in refusal(load_parameters, tmp_path, "best", 1)
    for name in ("30", "frist", "-1", "5.0", ""):
        message = refusal(load_parameters, saved, name, 1)
        assert f"--checkpoint={name}: must be best, last or a step there is: 20, 40, 50" in message
    shutil.copytree(saved, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "20")
    assert "20 is gone; name last or one of 40, 50" in refusal(load_parameters, tmp_path / "run", "best", 1)


def test_what_is_half_written_is_no_checkpoint(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "run")
    shutil.copytree(saved / "checkpoints" / "50", tmp_path / "run" / "checkpoints" / "60.orbax-checkpoint-tmp")
    assert load_parameters(tmp_path / "run", "last", 1)[1] == 50


def rewrite_progress(checkpoint: Path, **changes) -> None:
    path = checkpoint / "progress" / "metadata"
    record = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in record.items() if value != "missing"}))


def truncate(checkpoint: Path) -> None:
    for path in checkpoint.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES = {
    "no parameters": lambda path: shutil.rmtree(path / "parameters"),
    "no progress": lambda path: shutil.rmtree(path / "progress"),
    "truncated": truncate,
    "truncated arrays": lambda path: truncate(path / "parameters" / "d"),
    "a flipped bit": lambda path: flip_a_bit(max(path.rglob("d/*"), key=lambda file: file.stat().st_size)),
    "malformed progress": lambda path: (path / "progress" / "metadata").write_text("{"),
    "malformed metadata": lambda path: (path / "parameters" / "_METADATA").write_text("{"),
    "nothing": lambda path: (shutil.rmtree(path), path.mkdir()),
    "no seal": lambda path: (path / "seal.json").unlink(),
    "malformed seal": lambda path: (path / "seal.json").write_text("[1"),
    "another seal": lambda path: (path / "seal.json").write_text("[]"),
}


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def abstract() -> TrainState:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state_at(0))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_used(saved, tmp_path, caplog, damage):
    shutil.copytree(saved, tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoints" / "50"
    DAMAGES[damage](checkpoint)
    assert load_parameters(tmp_path / "run", "last", 1)[1] == 40
    (warning,) = [each.getMessage() for each in caplog.records if "the one before is used" in each.getMessage()]
    assert warning.startswith(f"{checkpoint}: damaged: ")
    assert f"{checkpoint}: this checkpoint cannot be read (" in refusal(load_parameters, tmp_path / "run", "50", 1)
    with Checkpoints(Workdir(tmp_path / "run"), tiny_config()) as checkpoints:
        state, progress = checkpoints.restore(abstract())
        assert (int(state.step), progress.step) == (40, 40)
        np.testing.assert_array_equal(state.parameters["layers"][1]["bias"], [40, -40])
        (warning,) = [record.getMessage() for record in caplog.records if "it is now" in record.getMessage()]
        assert warning.startswith(f"{checkpoint}: damaged: ") and "it is now damaged-50-0" in warning
        checkpoints.save(state_at(50), Progress(step=50))
    assert load_parameters(tmp_path / "run", "last", 1)[1] == 50
    with Checkpoints(Workdir(tmp_path / "run"), tiny_config()) as checkpoints:
        assert checkpoints.restore(abstract())[1].step == 50


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_again_by_itself(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "run")
    for step in (20, 40, 50):
        truncate(tmp_path / "run" / "checkpoints" / str(step))
    for _ in range(2):
        with Checkpoints(Workdir(tmp_path / "run"), tiny_config()) as checkpoints:
            assert "no checkpoint is whole" in refusal(checkpoints.restore, abstract())


@pytest.mark.parametrize(("version", "advice"), [(99, "update this code"), (1, "use the commit that made the run")])
def test_another_schema_is_refused(saved, tmp_path, version, advice):
    shutil.copytree(saved, tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoints" / "50"
    rewrite_progress(checkpoint, schema_version=version)
    seal.write(checkpoint)
    with Checkpoints(Workdir(tmp_path / "run"), tiny_config()) as checkpoints:
        message = refusal(checkpoints.restore, abstract())
    assert message.startswith(f"{checkpoint}: this checkpoint has schema version {version}") and advice in message


def test_arrays_of_another_model_are_named_with_the_keys_that_differ(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "run")
    # As if it had been saved before this key was added.
    config = tmp_path / "run" / "checkpoints" / "50" / "config" / "metadata"
    flat = json.loads(config.read_text())
    config.write_text(json.dumps({key: value for key, value in flat.items() if key != "checkpoint.keep_every"}))
    seal.write(tmp_path / "run" / "checkpoints" / "50")
    other = abstract()
    other.parameters["layers"][0]["kernel"] = jax.ShapeDtypeStruct((2, 5), np.float32)
    other.parameters["layers"][2] = {"bias": jax.ShapeDtypeStruct((4,), np.float32)}
    with Checkpoints(
        Workdir(tmp_path / "run"), tiny_config(model__d_ff=32, checkpoint__every=10, checkpoint__keep=2)
    ) as checkpoints:
        message = refusal(checkpoints.restore, other)
    assert "parameters.layers.0.kernel: (2, 3) there, (2, 5) wanted" in message
    assert "parameters.layers.2.bias: none there, (4,) wanted" in message
    assert message.endswith("; the configuration differs by model.d_ff: 16 -> 32")


def test_an_interruption_does_not_decide_which_are_kept(tmp_path):
    with Checkpoints(Workdir(tmp_path), tiny_config(checkpoint__every=10, checkpoint__keep=2)) as checkpoints:
        for step in (10, 20, 23):
            checkpoints.save(state_at(step), Progress(step=step))
        checkpoints.manager.wait_until_finished()
        assert kept(tmp_path) == [10, 20, 23]
        checkpoints.save(state_at(30), Progress(step=30))
    assert kept(tmp_path) == [20, 30]


def test_a_checkpoint_is_there_until_what_replaces_it_is(tmp_path, monkeypatch):
    save_run(tmp_path, 1, {10: None}, "loss")
    config = tiny_config(checkpoint__keep=1)
    with monkeypatch.context() as patch, pytest.raises(OSError), Checkpoints(Workdir(tmp_path), config) as checkpoints:
        patch.setattr(checkpoints.manager, "save", lambda *_, **__: (_ for _ in ()).throw(OSError()))
        patch.setattr(checkpoints, "_finish", lambda: None)  # as when it is killed
        checkpoints.save(state_at(10), Progress(step=10, examples=1))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["replaced-10"]
    with Checkpoints(Workdir(tmp_path), config) as checkpoints:
        assert checkpoints.restore(abstract())[1] == Progress(step=10)
    assert kept(tmp_path) == [10]
    # Killed a moment later, with both there.
    shutil.copytree(tmp_path / "checkpoints" / "10", tmp_path / "checkpoints" / "replaced-10")
    with Checkpoints(Workdir(tmp_path), config) as checkpoints:
        assert checkpoints.restore(abstract())[1].step == 10
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["10"]


def test_what_a_roll_back_goes_to_is_kept(tmp_path):
    config = tiny_config(checkpoint__every=10, checkpoint__keep=1)
    with Checkpoints(Workdir(tmp_path), config) as checkpoints:
        for step, skipped in ((10, 0), (20, 0), (30, 4)):
            checkpoints.save(state_at(step), Progress(step=step, skipped=skipped))
    assert kept(tmp_path) == [20, 30]
    with Checkpoints(Workdir(tmp_path), config) as checkpoints:
        checkpoints.restore(abstract())
        checkpoints.save(state_at(40), Progress(step=40, skipped=14))
        checkpoints.drop_skipping()
    assert kept(tmp_path) == [20]


def test_every_so_many_steps_one_is_kept_for_ever(tmp_path):
    config = tiny_config(checkpoint__every=10, checkpoint__keep=1, checkpoint__keep_every=20)
    with Checkpoints(Workdir(tmp_path), config) as checkpoints:
        for step in (10, 20, 30, 40, 50):
            checkpoints.save(state_at(step), Progress(step=step))
    assert kept(tmp_path) == [20, 40, 50]


def test_updates_skipped_before_a_checkpoint_make_it_one_to_drop(tmp_path):
    with Checkpoints(Workdir(tmp_path), tiny_config(checkpoint__every=10)) as checkpoints:
        for step, skipped in ((10, 0), (20, 0), (30, 4), (40, 14)):
            checkpoints.save(state_at(step), Progress(step=step, skipped=skipped))
        checkpoints.drop_skipping()
        assert kept(tmp_path) == [10, 20]
        assert checkpoints.restore(abstract())[1].step == 20
        checkpoints.save(state_at(30), Progress(step=30))
    assert kept(tmp_path) == [10, 20, 30]
