"""Models loaded from workdirs."""

import jax
import pytest

import transformer
from tests.checkpoints.saved_runs import refusal
from tests.checkpoints.workdirs import make_workdir, run
from transformer import evaluate
from transformer.checkpoints import loaded_models


@pytest.fixture
def no_compilation_cache(monkeypatch):
    """Restores JAX's state before the first call of `enable_compilation_cache`."""
    before = (
        jax.config.jax_compilation_cache_dir,
        jax.config.jax_persistent_cache_min_compile_time_secs,
    )
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    jax.config.update("jax_compilation_cache_dir", before[0])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", before[1])


@pytest.mark.slow
def test_a_workdir_does_not_choose_the_compilation_cache(
    tmp_path, monkeypatch, no_compilation_cache
):
    foreign, own = tmp_path / "foreign", tmp_path / "own"
    workdir = make_workdir(tmp_path / "run", **{"data.cache_dir": str(foreign)})
    monkeypatch.setenv("XDG_CACHE_HOME", str(own))
    transformer.load(workdir)
    # a library leaves the process's settings as they are
    assert jax.config.jax_compilation_cache_dir is None
    assert run(evaluate, f"--workdir={workdir}") == 0
    assert jax.config.jax_compilation_cache_dir.startswith(f"{own}/transformer/compiled/")


def test_the_best_checkpoint_can_be_averaged_with_those_before_it(tmp_path):
    workdir = make_workdir(
        tmp_path / "run", steps=tuple(range(10, 110, 10)), **{"checkpoint.keep": "2"}
    )
    (checkpoint,) = loaded_models.load([str(workdir)], "best", 2, []).checkpoints
    assert checkpoint == loaded_models.Checkpoint(str(workdir), 20, (10, 20))


def test_an_ensemble_is_decoded_only_within_the_positions_of_all_models(tmp_path):
    learned = {"model.positions": "learned", "model.max_positions": "19", "data.max_length": "19"}
    names = [
        str(make_workdir(tmp_path / name, **changes))
        for name, changes in (("a", {}), ("b", learned))
    ]
    assert len(loaded_models.load(names, "last", 1, []).graphs) == 2
    message = refusal(loaded_models.load, names, "last", 1, [("decoding.max_source_length", "17")])
    assert message.startswith(
        f"{names[1]}: cannot be decoded with the settings of {names[0]}: config.model.positions"
    )


def test_an_ensemble_has_one_direction(tmp_path):
    back = {"data.source_language": "out", "data.target_language": "in"}
    names = [
        str(make_workdir(tmp_path / name, **changes)) for name, changes in (("a", {}), ("b", back))
    ]
    assert refusal(loaded_models.load, names, "last", 1, []).startswith(
        f"--workdir={names[1]}: in-out: the model translates"
    )


def test_keys_of_sampling_without_samples_give_a_warning(tmp_path, caplog):
    name, given = (
        str(make_workdir(tmp_path / "run")),
        [("decoding.temperature", "0.5"), ("decoding.beam_size", "2")],
    )
    loaded_models.load([name], "last", 1, [*given, ("decoding.strategy", "sample")])
    assert "draws no samples" not in caplog.text
    loaded_models.load([name], "last", 1, given)
    assert "--decoding.temperature=0.5: decoding.strategy=beam draws no samples" in caplog.text


def test_a_model_of_another_size_is_refused(tmp_path):
    make_workdir(tmp_path / "run")
    config = tmp_path / "run" / "config.json"
    config.write_text(config.read_text().replace('"d_ff": 8', '"d_ff": 16'))
    assert "holds other arrays than this model" in refusal(
        loaded_models.load, [str(tmp_path / "run")], "last", 1, []
    )
