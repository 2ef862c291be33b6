"""Runs that a signal, a crash or their patience stops, and what a new start does."""

import json
import os
import shutil
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

from tests.checkpoints.saved_runs import read_run
from tests.data.files import write_pairs
from tests.training.tiny import at_step, flags, record, remove_layers, run
from transformer.checkpoints.restore import choose_step, read_progress
from transformer.training.compiled_step import CompiledStep
from transformer.training.validation import Validation


def crash() -> None:
    raise ZeroDivisionError("a crash")


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Returns the workdir of an uninterrupted run of eight steps, and its settings."""
    settings = {"training__steps": 8, "training__accumulation": 2, "training__ema_decay": 0.9}
    workdir = tmp_path_factory.mktemp("straight") / "run"
    assert run(workdir, **settings) == 0
    return workdir, settings


@pytest.mark.slow
def test_the_time_of_validations_is_apart(straight):
    text = (straight[0] / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    earlier = 0.0
    for step in (4, 8):
        train, valid = (line for line in lines if line["step"] == step)
        assert train["split"] == "train" and train["validation_seconds"] == earlier
        validation_seconds = valid["validation_seconds"] - earlier
        # Between these lines are only the end of the last update on the device, and the validation.
        assert 0 < validation_seconds <= valid["seconds"] - train["seconds"] + 1e-4
        earlier = valid["validation_seconds"]


# Both stop between the two steps of a training line.
@pytest.mark.first_case
@pytest.mark.parametrize(
    ("step", "action", "code", "saved"), [(3, crash, 1, 3), (4, interrupt, 130, 5)]
)
def test_a_resumed_run_gives_the_results_of_an_uninterrupted_one(
    straight, tmp_path, monkeypatch, capsys, step, action, code, saved
):
    expected, settings = straight
    workdir = tmp_path / "run"
    settings = settings | {"data__cache_dir": expected.parent / "cache"}
    with monkeypatch.context() as patch:
        at_step(patch, step, action)
        assert run(workdir, **settings) == code
    assert not (workdir / "complete.json").exists()
    assert choose_step(workdir, "last") == saved
    if action is interrupt:
        assert (
            f"step {saved} is saved: run the same command to resume"
            in capsys.readouterr().err.splitlines()[-1]
        )
    assert run(workdir, **settings) == 0
    assert f"Resuming from the checkpoint of step {saved}." in capsys.readouterr().err
    assert record(workdir) == record(expected)
    for which in ("last", "best"):
        (tree, step), (other, other_step) = (read_run(each, which) for each in (workdir, expected))
        assert step == other_step
        jax.tree.map(np.testing.assert_array_equal, tree, other)
    assert json.loads((workdir / "complete.json").read_text()) == {"step": 8}


@pytest.mark.slow
@pytest.mark.parametrize("step", [3, 2])  # a checkpoint after, and one before the first change
def test_a_run_resumes_exactly_where_the_number_of_batches_changes(tmp_path, monkeypatch, step):
    counts, update = [], CompiledStep.__call__

    def count(self, state, batches):
        counts.append(len(batches))
        return update(self, state, batches)

    settings = {
        "training__steps": 6,
        "training__accumulation_changes": "3:2,5:3",
        "training__log_every": 1,
    }
    settings |= {"checkpoint__every": 1}
    with monkeypatch.context() as patch:
        patch.setattr(CompiledStep, "__call__", count)
        assert run(tmp_path / "whole", **settings) == 0
    assert counts == [1, 1, 2, 2, 3, 3]
    with monkeypatch.context() as patch:
        at_step(patch, step, crash)
        assert run(tmp_path / "run", **settings) == 1
    assert choose_step(tmp_path / "run", "last") == step
    assert run(tmp_path / "run", **settings) == 0
    assert record(tmp_path / "run") == record(tmp_path / "whole")
    (tree, _), (other, _) = (read_run(tmp_path / name, "last") for name in ("run", "whole"))
    jax.tree.map(np.testing.assert_array_equal, tree, other)
    # Nor does a change skip or repeat a batch: a step reads those that follow the last one's.
    assert run(tmp_path / "single", training__steps=12, training__log_every=1) == 0
    examples = [
        line["examples"] for line in record(tmp_path / "single") if line["split"] == "train"
    ]
    changing = [line["examples"] for line in record(tmp_path / "whole") if line["split"] == "train"]
    assert changing == [examples[number - 1] for number in (1, 2, 4, 6, 9, 12)]


def test_starting_a_complete_run_changes_nothing(straight, capsys):
    workdir, settings = straight
    before = [
        (path, path.read_bytes())
        for path in workdir.rglob("*")
        if path.is_file() and path.name not in ("log.txt", ".lock")
    ]
    assert run(workdir, **settings) == 0
    errors = capsys.readouterr().err
    assert (
        "This run is complete." in errors
        and f"transformer.train --workdir={workdir} --extend=STEPS" in errors
    )
    for path, content in before:
        assert path.name == "environment.json" or path.read_bytes() == content


def test_a_run_refuses_another_vocabulary_or_data_than_it_began_with(straight, tmp_path, capsys):
    expected, settings = straight
    settings = settings | {"data__cache_dir": expected.parent / "cache"}
    # complete, so that a start ends once it has its data
    shutil.copytree(expected, tmp_path / "run")
    model, contents = tmp_path / "run" / "tokenizer.model", tmp_path / "run" / "contents.json"
    kept = model.read_bytes()
    model.write_bytes(kept.replace(b"z", b"q", 1))
    assert run(tmp_path / "run", **settings) == 2
    errors = capsys.readouterr().err
    assert (
        f"error: {contents}: the vocabulary is not the one that this run began with; restore the "
        "data" in errors
    )
    assert errors.count("\n") == 1  # nothing was encoded with it
    # As the message says, a deleted tokenizer is made again.
    model.unlink()
    assert run(tmp_path / "run", **settings) == 0
    assert model.read_bytes() == kept
    recorded = json.loads(contents.read_text())
    contents.write_text(json.dumps(recorded | {"the training corpus": "another"}))
    assert run(tmp_path / "run", **settings) == 2
    assert (
        "the training corpus is not the one that this run began with; restore the data"
        in capsys.readouterr().err
    )
    contents.unlink()  # as in runs older than this record
    assert run(tmp_path / "run", **settings) == 0
    assert json.loads(contents.read_text()) == recorded


@pytest.mark.slow
def test_a_run_resumes_with_data_at_another_path(tmp_path, monkeypatch, capsys):
    remove_layers(monkeypatch)
    workdir, old, new = tmp_path / "run", tmp_path / "old", tmp_path / "new"
    old.mkdir()
    for stem in ("train", "validation"):
        write_pairs(old, stem, [(f"a b {number}", f"b a {number}") for number in range(30)])
    settings = {"data__source": "text", "training__steps": 4}
    assert run(workdir, data__path=old, **settings) == 0
    shutil.copytree(old, new)
    write_pairs(new, "train", [("another", "corpus")] * 30)
    capsys.readouterr()
    assert run(workdir, data__path=new, **settings) == 2
    assert "the training corpus is not the one that this run began with" in capsys.readouterr().err
    assert json.loads((workdir / "config.json").read_text())["data"]["path"] == str(old)
    shutil.rmtree(new)
    old.rename(new)
    assert run(workdir, data__path=old, **settings) == 2
    assert "no such folder" in capsys.readouterr().err
    assert run(workdir, data__path=new, **settings) == 0
    assert json.loads((workdir / "config.json").read_text())["data"]["path"] == str(new)


def test_the_workdir_of_another_config_is_refused(straight, capsys):
    workdir, settings = straight
    before = sorted(workdir.rglob("*"))
    assert run(workdir, **settings | {"model__d_ff": 32}) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1 and errors.startswith("error: ")
    assert "model.d_ff: 16 -> 32" in errors and f"--config={workdir / 'config.json'}" in errors
    assert sorted(workdir.rglob("*")) == before


@pytest.mark.slow
def test_training_ends_when_validations_stop_improving(straight, tmp_path, monkeypatch, capsys):
    remove_layers(monkeypatch)
    # Validations are at steps 2, 4, ...; the best is at step 4, and the second one after it ends
    # the run.
    losses = iter([3.0, 1.0, 2.0, 1.5, 0.5])
    scores = {"nll": 1.0, "perplexity": 1.0, "accuracy": 0.0}
    monkeypatch.setattr(Validation, "__call__", lambda *_: ({"loss": next(losses), **scores}, []))
    settings = straight[1] | {
        "data__cache_dir": straight[0].parent / "cache",
        "training__steps": 100,
    }
    settings |= {"training__patience": 2, "training__eval_every": 2, "checkpoint__every": 50}
    assert run(tmp_path / "run", **settings) == 0
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .endswith("Done: 8 steps; the best checkpoint is step 4, by checkpoint.best_metric=loss.")
    )
    assert [line["step"] for line in record(tmp_path / "run") if line["split"] == "valid"] == [
        2,
        4,
        6,
        8,
    ]
    assert choose_step(tmp_path / "run", "best") == 4
    assert choose_step(tmp_path / "run", "last") == 8
    assert run(tmp_path / "run", **settings) == 0
    assert "This run is complete." in capsys.readouterr().err


@pytest.mark.slow
def test_an_interrupted_validation_is_repeated_and_recorded_once(straight, tmp_path, monkeypatch):
    remove_layers(monkeypatch)
    # All scores are equal, so only the first validation saves a checkpoint as the best.
    left = []

    def validate(self, parameters, between) -> tuple[dict, list]:
        if left and not left.pop():
            signal.raise_signal(signal.SIGTERM)
            between()
        return {"loss": 1.0, "nll": 1.0, "perplexity": 2.7, "accuracy": 0.0}, []

    monkeypatch.setattr(Validation, "__call__", validate)
    settings = straight[1] | {"data__cache_dir": straight[0].parent / "cache", "training__steps": 6}
    settings |= {"training__eval_every": 2, "checkpoint__every": 5}
    assert run(tmp_path / "whole", **settings) == 0
    left = [False, True]  # the second is interrupted
    assert run(tmp_path / "run", **settings) == 130
    assert (
        choose_step(tmp_path / "run", "last") == 4
        and record(tmp_path / "run")[-1]["split"] == "train"
    )
    with monkeypatch.context() as patch:
        at_step(patch, 4, crash)  # with the validation done and recorded, but not saved
        assert run(tmp_path / "run", **settings) == 1
    assert record(tmp_path / "run")[-1]["split"] == "valid"
    assert run(tmp_path / "run", **settings) == 0
    assert record(tmp_path / "run") == record(tmp_path / "whole")
    assert read_progress(tmp_path / "run" / "checkpoints" / "6").best_step == 2


def test_a_signal_before_the_first_step_loses_nothing(straight, tmp_path):
    settings = straight[1] | {"data__cache_dir": straight[0].parent / "cache"}
    argv = [sys.executable, "-m", "transformer.train", *flags(tmp_path / "run", **settings)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        next(line for line in process.stderr if "Model:" in line)
        process.send_signal(signal.SIGUSR1)
        output, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (process.returncode, output) == (130, "")
    assert errors.splitlines()[-1] == f"error: terminated by signal {signal.SIGUSR1}"
    assert (
        len(
            [
                line
                for line in errors.lower().splitlines()
                if "interrupted" in line or "terminated" in line
            ]
        )
        == 1
    )
    assert not list((tmp_path / "run" / "checkpoints").glob("*"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_resume(straight, tmp_path, number):
    settings = straight[1] | {"data__cache_dir": straight[0].parent / "cache"}
    settings |= {
        "training__steps": 1_000_000,
        "training__log_every": 1,
        "checkpoint__every": 1_000_000,
    }
    argv = [sys.executable, "-m", "transformer.train", *flags(tmp_path / "run", **settings)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        # The loop runs once it has logged a second line.
        for line in process.stderr:
            if "step 2  loss" in line:
                break
        process.send_signal(number)
        output, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (process.returncode, output) == (130, "")
    step = choose_step(tmp_path / "run", "last")
    assert step >= 2
    last = errors.splitlines()[-1]
    assert last == f"error: interrupted; step {step} is saved: run the same command to resume"
    assert "Traceback" not in errors and not (tmp_path / "run" / "complete.json").exists()
    assert max(line["step"] for line in record(tmp_path / "run")) == step
