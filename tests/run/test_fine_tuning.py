"""Runs that start from another run's parameters: what they take, what they record, and what they
refuse.
"""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
import pytest

from configs import base
from tests.checkpoints import workdirs
from tests.checkpoints.damages import DAMAGES, HUGE, declare_huge
from tests.checkpoints.saved_runs import read_run
from tests.checkpoints.workdirs import SETTINGS, make_workdir
from tests.data.files import write_pairs
from tests.training import tiny
from transformer import train
from transformer.checkpoints import restore
from transformer.checkpoints.manager import Checkpoints
from transformer.checkpoints.restore import named_leaves
from transformer.config import cli, loading
from transformer.run import dry_run, preparation
from transformer.run.fine_tuning import open_parent
from transformer.support import files
from transformer.support.errors import UserError
from transformer.training.progress import Progress
from transformer.training.state import TrainState
from transformer.workdir import Workdir

# TensorStore reports damaged arrays a second time, from its threads.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

CHILD = {
    "data.max_length": "16",
    "data.workers": "1",
    "batch.tokens": "128",
    "batch.max_buckets": "1",
    "seed": "7",
    "optimizer.name": "adamw",
    "optimizer.warmup_steps": "2",
    "training.steps": "6",
    "training.log_every": "2",
    "training.eval_every": "3",
    "training.eval_bleu": "false",
    "checkpoint.best_metric": "loss",
    "checkpoint.every": "2",
}


@pytest.fixture(scope="module")
def parent(tmp_path_factory) -> Path:
    """Returns a run of numbers with checkpoints 10, 20 (the best) and 30.

    The seeds of runs differ.
    """
    return make_workdir(tmp_path_factory.mktemp("parents") / "parent")


@pytest.fixture
def copied(parent, tmp_path) -> Path:
    """Returns a copy of the parent, beside its data, that a test may damage."""
    shutil.copytree(parent.parent / "data", tmp_path / "data")
    return shutil.copytree(parent, tmp_path / "parent")


def settings(parent: Path, **changes: str) -> dict[str, str]:
    """Returns the settings of a run that starts from the parent; `changes` as in `tiny_config`."""
    data = {
        "data.path": str(parent.parent / "data"),
        "data.cache_dir": str(parent.parent / "cache"),
    }
    changes = {key.replace("__", "."): str(value) for key, value in changes.items()}
    return SETTINGS | CHILD | data | {"training.init_from": str(parent)} | changes


def child(parent: Path, **changes: str) -> ml_collections.FrozenConfigDict:
    return loading.override(base.get_config(), settings(parent, **changes).items())


def train_child(workdir: Path, parent: Path, **changes: str) -> int:
    """Trains in this process and returns the exit code."""
    flags = [f"--config.{key}={value}" for key, value in settings(parent, **changes).items()]
    return cli.execute(
        train.make_parser(),
        train.main,
        ["--config=configs/base.py", f"--workdir={workdir}", *flags],
    )


def prepared(workdir: Path, config: ml_collections.FrozenConfigDict) -> preparation.Run:
    with preparation.open_workdir(workdir, config) as (opened, _):
        return preparation.prepare(config, opened)


def refusal(workdir: Path, config: ml_collections.FrozenConfigDict) -> str:
    """Returns the message with which a run is refused that leaves no workdir."""
    with pytest.raises(UserError) as caught:
        prepared(workdir, config)
    assert "\n" not in str(caught.value) and not workdir.exists()
    return str(caught.value)


def equal(tree, expected) -> None:
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(tree), expected)


def test_a_run_starts_from_its_parent_with_a_fresh_optimizer_and_its_own_record(
    parent, tmp_path, caplog
):
    run = prepared(tmp_path / "run", child(parent, training__ema_decay="0.5"))
    with caplog.at_level("INFO"):
        state = run.initial_state()
    equal(state.parameters, read_run(parent, "best")[0])
    equal(state.ema_parameters, read_run(parent, "best")[0])
    equal(state.optimizer_state, run.initializer.create().optimizer_state)
    assert int(state.step) == 0
    assert jax.tree.map(lambda x: x.sharding, state) == jax.tree.map(
        lambda x: x.sharding, run.initializer.abstract_state
    )
    assert (tmp_path / "run" / "tokenizer.model").read_bytes() == (
        parent / "tokenizer.model"
    ).read_bytes()
    taken = f"from {parent}, step 20: 1,232 of 1,232; not taken: none"
    assert f"Initial parameters {taken}." in caplog.text
    assert f"parameters  {taken}" in dry_run.describe(run)
    record = json.loads((tmp_path / "run" / "parent.json").read_text())
    assert (record["workdir"], record["step"], record["item"]) == (str(parent), 20, "parameters")
    assert record["commit"] == json.loads((parent / "environment.json").read_text())["commit"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_second_phase_with_the_optimizers_state_continues_the_first(tmp_path, capsys, name):
    """With a constant rate, two phases equal one run of as many steps, if all steps read the same
    batch.
    """
    for stem in ("train", "validation"):
        write_pairs(tmp_path, stem, [("a b c", "c b a")] * 16)  # one batch, whatever their order
    settings = {
        "data__source": "text",
        "data__path": tmp_path,
        "model__dropout": 0.0,
        "training__ema_decay": 0.9,
    }
    settings |= {
        "optimizer__name": name,
        "optimizer__weight_decay": 0.1,
        "optimizer__clip_norm": 1.0,
    }
    settings |= {
        "optimizer__schedule": "constant",
        "optimizer__learning_rate": 0.1,
        "optimizer__warmup_steps": 0,
    }
    assert tiny.run(tmp_path / "whole", training__steps=5, **settings) == 0
    assert tiny.run(tmp_path / "first", training__steps=3, **settings) == 0
    settings["training__init_from"] = f"{tmp_path / 'first'}:last"
    assert (
        tiny.run(
            tmp_path / "second", training__steps=2, training__init_optimizer="true", **settings
        )
        == 0
    )
    taken = f"from {tmp_path / 'first'}, step 3 (raw parameters, with the optimizer's state): "
    assert taken in capsys.readouterr().err
    whole, second = (
        tmp_path / f"{folder}/checkpoints/{step}" for folder, step in (("whole", 5), ("second", 2))
    )
    equal(
        restore.read_parameters(second, "parameters"), restore.read_parameters(whole, "parameters")
    )
    expected, states = (
        named_leaves(restore.read_arrays(folder, "optimizer")) for folder in (whole, second)
    )
    counts = {
        (int(states[name]), int(array))
        for name, array in expected.items()
        if (states[name] != array).any()
    }
    assert counts == {(2, 5)}  # of schedules
    assert tiny.run(tmp_path / "fresh", training__steps=2, **settings) == 0
    fresh = restore.read_parameters(tmp_path / "fresh" / "checkpoints" / "2", "parameters")
    assert tiny.distance(fresh, restore.read_parameters(whole, "parameters")) > 1e-3


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"training__init_from": "{}:10"},
            "{}/checkpoints/10 does not fit this run (it has no optimizer's state, which",
        ),
        (
            {"optimizer__name": "adamw"},
            "(optimizer.name: adam -> adamw; 0.count: found none, expected (); ",
        ),
        ({"model__num_heads": "4"}, "(model: model.num_heads: 2 -> 4; "),
        ({}, "(0.count: found none, expected (); "),  # the state of the parent is that of SGD
    ],
)
def test_a_state_of_another_optimizer_or_model_is_refused(parent, tmp_path, changes, reason):
    settings = {"optimizer__name": "adam", "training__init_optimizer": "true"} | changes
    config = child(parent, **{key: value.format(parent) for key, value in settings.items()})
    message = refusal(tmp_path / "run", config)
    assert message.startswith("config.training.init_optimizer=True: the state of ")
    assert reason.format(parent) in message


def test_a_damaged_optimizer_is_refused_if_it_is_taken(copied, tmp_path):
    settings = {"optimizer__name": "adam", "training__init_optimizer": "true"}
    next(
        path for path in (copied / "checkpoints" / "20" / "optimizer").rglob("*") if path.is_file()
    ).write_text("x")
    assert "damaged: optimizer/" in refusal(tmp_path / "run", child(copied, **settings))
    prepared(tmp_path / "run", child(copied))


@pytest.mark.parametrize(("suffix", "step"), [(":best", 20), (":last", 30), (":10", 10)])
def test_the_checkpoint_can_be_named(parent, tmp_path, suffix, step):
    assert (
        open_parent(child(parent, training__init_from=f"{parent}{suffix}"), Workdir(tmp_path)).step
        == step
    )


def test_a_folder_whose_name_ends_like_a_step_is_a_parent(copied, tmp_path):
    folder = copied.rename(copied.with_name("12:30"))
    for suffix, step in (("", 20), (":10", 10)):
        opened = open_parent(
            child(folder, training__init_from=f"{folder}{suffix}"), Workdir(tmp_path)
        )
        assert (opened.workdir.path, opened.step) == (folder, step)


def test_the_moving_average_of_the_parent_is_taken(copied, tmp_path):
    parameters, _ = read_run(copied)
    average = jax.tree.map(lambda x: jnp.asarray(x) + 1, parameters)
    state = TrainState(
        jnp.array(40), jnp.array(0), parameters, optax.sgd(0.1).init(parameters), average
    )
    with Checkpoints(Workdir(copied), loading.load(copied)) as checkpoints:
        checkpoints.save(state, Progress(step=40, best_step=40))
    opened = open_parent(child(copied), Workdir(tmp_path / "run"))
    equal(
        opened.initial_parameters(jax.device_put(parameters), opened.tokenizer),
        jax.device_get(average),
    )
    assert ", step 40 (moving average): " in opened.describe(parameters)


@pytest.mark.slow
def test_a_translation_model_starts_from_a_masked_language_model_and_back(
    parent, tmp_path, monkeypatch
):
    masked = {"training__objective": "masked_lm", "data__target_language": ""}
    encoder = prepared(tmp_path / "encoder", child(parent, **masked))  # its decoder is not taken
    random, initial = (
        named_leaves(jax.device_get(state.parameters))
        for state in (encoder.initializer.create(), encoder.initial_state())
    )
    original = named_leaves(read_run(parent, "20")[0])
    assert "encoder.embedding.table" in initial and not any(
        name.startswith("decoder") for name in initial
    )
    for name, array in initial.items():
        taken = original[name.replace("encoder.embedding", "decoder.embedding")]
        np.testing.assert_array_equal(array, taken)
        assert (array != random[name]).any() or array.std() == 0
    with Checkpoints(encoder.workdir, encoder.config) as checkpoints:
        checkpoints.save(encoder.initial_state(), Progress(step=5, best_step=5))
    data = {"data__path": parent.parent / "data", "data__cache_dir": tmp_path / "cache"}
    run = prepared(tmp_path / "run", child(tmp_path / "encoder", **data))
    back = named_leaves(jax.device_get(run.initial_state().parameters))
    start = named_leaves(jax.device_get(run.initializer.create().parameters))
    for name, array in back.items():
        is_taken = name.startswith("encoder.") or name == "decoder.embedding.table"
        np.testing.assert_array_equal(array, original[name] if is_taken else start[name])
    assert "what training.objective=masked_lm does not have" in run.parent.describe(
        run.initializer.create().parameters
    )
    deeper = child(tmp_path / "encoder", model__num_layers=2, **data)
    message = refusal(tmp_path / "deeper", deeper)
    assert "(encoder.layers.1.feed_forward.inner.bias: found none, expected (8,); " in message
    assert "make the models equal (model.num_layers: 1 -> 2)" in message


@pytest.mark.slow
def test_parts_that_are_not_taken_are_random(parent, tmp_path):
    # The new model has another feed-forward width in its encoder, which the parts that are taken do
    # not.
    config = child(
        parent,
        training__init_skip="decoder.layers, encoder.layers.0.feed_forward",
        model__d_ff="24",
    )
    run = prepared(tmp_path / "run", config)
    random, taken = (
        named_leaves(jax.device_get(tree))
        for tree in (run.initializer.create().parameters, read_run(parent, "best")[0])
    )
    for name, array in named_leaves(jax.device_get(run.initial_state().parameters)).items():
        skipped = name.startswith(("decoder.layers.", "encoder.layers.0.feed_forward."))
        np.testing.assert_array_equal(array, (random if skipped else taken)[name])
    assert json.loads((tmp_path / "run" / "parent.json").read_text())["not_taken"] == [
        "decoder.layers",
        "encoder.layers.0.feed_forward",
    ]


@pytest.mark.slow
def test_a_vocabulary_goes_with_its_embeddings(tmp_path):
    separate = {"tokenizer.shared": "false", "model.share_embeddings": "target"}
    parent = make_workdir(tmp_path / "parent", steps=(10, 20), **separate)
    assert read_run(parent)[0]["encoder"]["embedding"]["table"].shape == (12, 8)
    (tmp_path / "small").mkdir()
    for name in ("train.in", "train.out", "valid.in", "valid.out"):
        (tmp_path / "small" / name).write_text("1 2 3\n" * 8)
    changes = {key.replace(".", "__"): value for key, value in separate.items()} | {
        "data__path": tmp_path / "small"
    }
    run = prepared(
        tmp_path / "run", child(parent, training__init_skip="decoder.embedding", **changes)
    )
    # 8: the numbers up to 3 and the four special tokens
    assert run.tokenizer.vocab_sizes == (12, 8)
    assert run.initial_state().parameters["decoder"]["embedding"]["table"].shape == (8, 8)


@pytest.mark.slow
def test_a_restart_reads_the_parent_again_only_before_the_first_checkpoint(
    copied, tmp_path, monkeypatch, capsys
):
    def crash() -> None:
        raise RuntimeError

    tiny.remove_layers(monkeypatch)
    run, changes = tmp_path / "run", {"training__eval_every": "6", "checkpoint__every": "4"}
    assert train_child(tmp_path / "whole", copied, **changes) == 0
    with monkeypatch.context() as patch:
        tiny.at_step(patch, 3, crash)
        assert train_child(run, copied, **changes) == 1
    assert (run / "metrics.jsonl").exists() and not restore.steps_in(run / "checkpoints")
    # By now the parent has a better checkpoint.
    zeros = jax.tree.map(jnp.zeros_like, read_run(copied)[0])
    with Checkpoints(Workdir(copied), loading.load(copied)) as checkpoints:
        state = TrainState(jnp.array(40), jnp.array(0), zeros, optax.sgd(0.1).init(zeros), None)
        checkpoints.save(state, Progress(step=40, best_step=40))
    with monkeypatch.context() as patch:
        tiny.at_step(patch, 5, crash)
        assert train_child(run, copied, **changes) == 1
    assert restore.steps_in(run / "checkpoints") == [4]
    shutil.rmtree(copied)
    assert train_child(run, copied, **changes) == 0
    assert tiny.record(run) == tiny.record(tmp_path / "whole")
    equal(read_run(run)[0], read_run(tmp_path / "whole")[0])
    assert json.loads((run / "parent.json").read_text())["step"] == 20
    assert train_child(tmp_path / "new", copied) == 2
    assert f"config.training.init_from={copied}: no such folder" in capsys.readouterr().err


def test_a_restart_refuses_a_parent_that_was_trained_again(copied, tmp_path, monkeypatch):
    config = child(copied)
    prepared(tmp_path / "run", config).workdir.metrics.touch()  # the run has begun
    shutil.rmtree(copied)
    make_workdir(copied, seed=1)
    with pytest.raises(
        UserError, match="checkpoints/20 has changed since this run began; start again in another"
    ):
        prepared(tmp_path / "run", config)


def test_a_restart_refuses_a_parent_that_was_damaged(copied, tmp_path):
    prepared(tmp_path / "run", child(copied)).workdir.metrics.touch()
    (copied / "checkpoints" / "20" / "checkpoint.json").write_text("{")
    with pytest.raises(UserError, match="checkpoints/20: this checkpoint cannot be read"):
        prepared(tmp_path / "run", child(copied))


@pytest.mark.slow
def test_a_run_that_never_began_takes_the_parent_as_it_is_now(copied, tmp_path, monkeypatch):
    prepared(tmp_path / "run", child(copied))
    shutil.rmtree(copied)
    for name in ("SOURCES", "REFERENCES"):  # of fewer numbers, so that the vocabulary is another
        monkeypatch.setattr(workdirs, name, ["1 2 3"] * 5)
    make_workdir(copied, seed=1)
    run = prepared(tmp_path / "run", child(copied))
    equal(run.initial_state().parameters, read_run(copied, "best")[0])
    assert (tmp_path / "run" / "tokenizer.model").read_bytes() == (
        copied / "tokenizer.model"
    ).read_bytes()
    prepared(tmp_path / "run", child(copied, training__init_from=""))
    assert not run.workdir.parent.exists()


@pytest.mark.slow
def test_a_kill_at_any_write_of_the_first_start_leaves_what_the_next_one_replaces(
    parent, tmp_path, monkeypatch
):
    def contents(folder: Path) -> dict[str, bytes | None]:
        unequal = (".lock", "environment.json")  # which have a time
        return {
            path.name: None if path.name in unequal else path.read_bytes()
            for path in folder.glob("*")
        }

    class Killed(Exception):
        pass

    def write(path: Path, content: bytes) -> None:
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        write_bytes(path, content)

    expected = contents(prepared(tmp_path / "whole", child(parent)).workdir.path)
    write_bytes = files.write_bytes
    monkeypatch.setattr(files, "write_bytes", write)
    for number in range(len(expected) - 1):  # all but .lock
        left = [number]
        with pytest.raises(Killed):
            prepared(tmp_path / "run", child(parent))
    left = [-1]
    prepared(tmp_path / "run", child(parent))
    assert contents(tmp_path / "run") == expected


def test_a_parent_without_a_record_of_its_environment_has_an_unknown_commit(copied, tmp_path):
    (copied / "environment.json").unlink()
    prepared(tmp_path / "run", child(copied))
    assert json.loads((tmp_path / "run" / "parent.json").read_text())["commit"] is None


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"training__init_from": "{}/nowhere"},
            "config.training.init_from={}/nowhere: no such folder",
        ),
        (
            {"training__init_from": "{}x"},
            "config.training.init_from={}x: no such folder; did you mean {}?",
        ),
        (
            {"training__init_from": "{}:15"},
            "config.training.init_from={}:15: must be best, last or one of the steps 10, 2",
        ),
        (
            {"training__init_skip": "encodr"},
            "config.training.init_skip=encodr: no parameter's name is or begins with encodr; "
            "they begin with decoder.",
        ),
        (
            {"training__init_skip": "lm_head"},
            "no parameter's name is or begins with lm_head; they begin with decoder.embedding, "
            "decoder.layers, encoder.layers",
        ),
        (
            {"model__d_ff": "24"},
            "do not fit this model (decoder.layers.0.feed_forward.inner.bias: found (8,), "
            "expected (24,); decoder.",
        ),
        (
            {"model__d_ff": "24"},
            "and 3 more); make the models equal (model.d_ff: 8 -> 24) or list what is not",
        ),
        (
            {"model__num_layers": "2"},
            "decoder.layers.1.cross_attention.key.kernel: found none, expected (8, 8)",
        ),
        (
            {"model__share_embeddings": "none", "tokenizer__shared": "false"},
            "config.tokenizer.shared=False: {} has another tokenizer, so its embeddings would "
            "get other tokens; take that run's tokenizer, or set "
            "config.training.init_skip=decoder.embedding.table,encoder.embedding.table,"
            "projection.kernel",
        ),
        (
            {"tokenizer__kind": "bpe", "data__source": "text"},
            "config.tokenizer.kind=bpe: {} has another tokenizer",
        ),
    ],
)
def test_unusable_parents_are_refused_and_leave_no_workdir(parent, tmp_path, changes, message):
    config = child(parent, **{key: value.format(parent) for key, value in changes.items()})
    assert message.format(parent, parent) in refusal(tmp_path / "run", config)


def test_frozen_parameters_stay_those_of_the_parent(parent, tmp_path):
    changes = {
        "training__freeze": "encoder, decoder.layers",
        "training__steps": "2",
        "training__eval_every": "2",
    }
    assert train_child(tmp_path / "run", parent, **changes) == 0
    before, after = (
        named_leaves(read_run(parent, "best")[0]),
        named_leaves(read_run(tmp_path / "run", "last")[0]),
    )
    changed = {name for name in before if (before[name] != after[name]).any()}
    assert changed == {"decoder.embedding.table"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"training__freeze": "encoder,decoder"},
            "training.freeze=encoder,decoder: these are all parameters",
        ),
        (
            {"training__freeze": "encode"},
            "training.freeze=encode: no parameter's name is or begins with encode; they",
        ),
        (
            {"optimizer__rate_factors": "dec:2"},
            "rate_factors=dec:2: no parameter's name is or begins with dec; they",
        ),
        ({"optimizer__rate_factors": "encoder"}, "rate_factors: encoder must be NAME:FACTOR"),
    ],
)
def test_wrong_names_of_what_is_trained_are_refused(parent, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        prepared(tmp_path / "run", child(parent, **changes))


@pytest.mark.slow
def test_another_vocabulary_is_refused_unless_its_embeddings_are_skipped(tmp_path):
    text = {
        "data.source": "text",
        "data.cache_dir": str(tmp_path / "cache"),
        "tokenizer.kind": "word",
    }
    parent = make_workdir(tmp_path / "parent", steps=(10, 20), **text)
    model_file = (
        make_workdir(tmp_path / "other", steps=(10,), **text | {"tokenizer.vocab_size": "10"})
        / "tokenizer.model"
    )
    changes = {key.replace(".", "__"): value for key, value in text.items()}
    message = refusal(tmp_path / "run", child(parent, tokenizer__model_file=model_file, **changes))
    assert message.startswith(
        f"config.tokenizer.model_file={model_file}: {parent} has another tokenizer, so"
    )
    assert message.endswith(" set config.training.init_skip=decoder.embedding.table")
    prepared(
        tmp_path / "same",
        child(parent, tokenizer__model_file=parent / "tokenizer.model", **changes),
    )
    config = child(
        parent, tokenizer__model_file=model_file, training__init_skip="decoder.embedding", **changes
    )
    assert prepared(tmp_path / "run", config).tokenizer.vocab_sizes == (10, 10)
    # Numbers instead of text are other tokens too.
    message = refusal(tmp_path / "ids", child(parent))
    assert message.startswith(f"config.tokenizer.kind=ids: {parent} has another tokenizer")
    prepared(tmp_path / "ids", child(parent, training__init_skip="decoder.embedding"))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused(copied, tmp_path, damage):
    DAMAGES[damage](copied / "checkpoints" / "20")
    message = refusal(tmp_path / "run", child(copied))
    assert message.startswith(
        f"config.training.init_from={copied}: {copied / 'checkpoints' / '20'}: this checkpoint "
        "cannot"
    )


def test_shapes_are_compared_before_arrays_are_read(copied, tmp_path):
    declare_huge(copied / "checkpoints" / "20")
    declared = f"kernel: found {HUGE}, expected (8, 8)"
    assert declared in refusal(tmp_path / "run", child(copied))
    # Arrays that are not taken are read too, and so compared with the parent's own configuration.
    run = prepared(tmp_path / "run", child(copied, training__init_skip="encoder,decoder"))
    with pytest.raises(UserError) as caught:
        run.initial_state()
    assert declared in str(caught.value)


def test_a_model_that_computes_something_else_with_the_same_parameters_gives_a_warning(
    parent, tmp_path, caplog
):
    prepared(tmp_path / "same", child(parent, model__dropout="0.3"))
    assert "The model differs" not in caplog.text
    prepared(tmp_path / "run", child(parent, model__num_heads="4"))
    assert f"The model differs from that of {parent}: model.num_heads: 2 -> 4." in caplog.text


def test_settings_of_a_vocabulary_that_is_not_trained_give_a_warning(parent, tmp_path, caplog):
    prepared(tmp_path / "same", child(parent))
    assert "no effect" not in caplog.text
    prepared(
        tmp_path / "run",
        child(parent, tokenizer__character_coverage=0.99, tokenizer__normalization="identity"),
    )
    keys = (
        "tokenizer.normalization: nmt_nfkc -> identity; tokenizer.character_coverage: 1.0 -> 0.99"
    )
    assert (
        f"The vocabulary is that of {parent}, so these keys have no effect: {keys};" in caplog.text
    )
