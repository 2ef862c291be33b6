"""Damaged workdirs: their content is used unchanged or refused in one line."""

import itertools
import shutil
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checkpoints.workdirs import make_workdir
from tests.hostile.inputs import damages, examples
from tests.hostile.outcomes import Refusal, outcome
from transformer.checkpoints import loaded_models
from transformer.checkpoints.manager import Checkpoints
from transformer.checkpoints.restore import read_parameters
from transformer.config import loading
from transformer.run import checks, preparation
from transformer.training.state import TrainState
from transformer.workdir import Workdir

# Pending reads of a failed restore report to Orbax's event loop after it is closed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def whole(tmp_path_factory) -> Path:
    return make_workdir(tmp_path_factory.mktemp("whole") / "run", steps=(10, 20))


@pytest.fixture(scope="session")
def loaded(whole) -> loaded_models.LoadedModels:
    return loaded_models.load([str(whole)], "last", 1, [])


def damaged_copy(whole: Path, part: str, data: st.DataObject) -> Path:
    """Returns a copy of a workdir with one file or folder under `part` damaged."""
    copy = whole.with_name(f"damaged-{next(NUMBERS)}")
    shutil.copytree(whole, copy)
    path, damage = data.draw(damages(whole / part))
    damage(copy / part / path)
    return copy


@examples(0.3)
@given(st.data())
def test_a_damaged_checkpoint_is_refused_or_loads_unchanged(whole, loaded, data):
    copy = damaged_copy(whole, "checkpoints", data)
    result = outcome(read_parameters, copy / "checkpoints" / "20")
    shutil.rmtree(copy)
    if isinstance(result, Refusal):
        assert str(copy) in result.message
    else:
        jax.tree.map(np.testing.assert_array_equal, result, loaded.parameters[0])


@pytest.fixture(scope="session")
def saved(whole) -> dict[int, dict]:
    """Returns the parameters of each checkpoint by step."""
    return {step: read_parameters(whole / "checkpoints" / str(step)) for step in (10, 20)}


@examples(0.3)
@given(st.data(), st.sampled_from(("checkpoints", "checkpoints/20")))
def test_a_run_resumes_from_an_undamaged_checkpoint(whole, saved, data, part):
    config = loading.load(whole)
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = TrainState(np.int32(0), np.int32(0), saved[10], optax.sgd(0.1).init(saved[10]), None)
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), abstract
    )
    copy = damaged_copy(whole, part, data)

    with Checkpoints(Workdir(copy), config) as checkpoints:
        state, progress = checkpoints.restore(abstract)
    shutil.rmtree(copy)
    assert state.step == progress.step
    jax.tree.map(np.testing.assert_array_equal, state.parameters, saved[progress.step])


@examples(0.3)
@given(st.data(), st.sampled_from(("best", "last")), st.integers(1, 2))
def test_a_damaged_workdir_is_refused_or_loaded(whole, loaded, data, which, average):
    copy = damaged_copy(whole, ".", data)
    result = outcome(loaded_models.load, [str(copy)], which, average, [])
    shutil.rmtree(copy)
    if isinstance(result, Refusal):
        assert str(copy) in result.message
    else:
        assert (
            result.tokenizer.fingerprint == loaded.tokenizer.fingerprint
            and result.config.model.num_layers >= 1
        )


@examples(0.3)
@given(st.data())
def test_a_damaged_workdir_is_refused_or_resumed(whole, data):
    config = loading.load(whole)
    copy = damaged_copy(whole, ".", data)
    result = outcome(preparation.create_or_check, Workdir(copy), config, None)
    if not isinstance(result, Refusal):
        result = outcome(checks.record_start, Workdir(copy), config)
    kept = loading.load(copy) if not isinstance(result, Refusal) else None
    shutil.rmtree(copy)
    assert kept == config if kept else str(copy) in result.message
