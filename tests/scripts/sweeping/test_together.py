"""Sweeps whose trials train together, beside separate runs."""

import csv
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import optuna
import pytest

from scripts import sweep
from scripts.sweeping import together, worker
from scripts.sweeping.description import listed, search
from scripts.sweeping.stack import TrialStack
from scripts.verify_resume import read_untimed
from tests.checkpoints.workdirs import run
from tests.scripts.tiny_sweep import error, sweep_file, tiny_flags
from tests.training.tiny import distance, flags, tiny_config
from transformer import train
from transformer.checkpoints.restore import read_parameters, steps_in
from transformer.support.errors import UserError

# All keys that may vary, each with a value of zero where that is another program in a separate run.
TRIALS = [
    {
        "seed": 1,
        "optimizer.learning_rate": 0.5,
        "optimizer.warmup_steps": 4,
        "optimizer.weight_decay": 0.1,
        "model.dropout": 0.0,
        "model.attention_dropout": 0.1,
        "model.activation_dropout": 0.75,
        "training.label_smoothing": 0.0,
    },
    {
        "seed": 2,
        "optimizer.learning_rate": 0.25,
        "optimizer.warmup_steps": 2,
        "optimizer.weight_decay": 0.5,
        "model.dropout": 0.6,
        "model.attention_dropout": 0.0,
        "model.activation_dropout": 0.0,
        "training.label_smoothing": 0.2,
    },
]


def together_flags(
    tmp_path: Path, trials: list[dict], pruner: str = "None", **changes: object
) -> list[str]:
    what = sweep_file(tmp_path, f'sweep.listed({trials}, objective="loss", pruner={pruner})')
    return [*tiny_flags(tmp_path, **changes), what, f"--workdir={tmp_path / 'sweep'}", "--together"]


def states(tmp_path: Path) -> list[str]:
    return [
        row["state"]
        for row in csv.DictReader((tmp_path / "sweep" / "trials.csv").read_text().splitlines())
    ]


def record(tmp_path: Path, number: int) -> list[dict]:
    return read_untimed(tmp_path / "sweep" / "trials" / f"{number:04}" / "metrics.jsonl")


def assert_close(lines: list[dict], expected: list[dict]) -> None:
    """Asserts that two records differ by rounding only."""
    assert len(lines) == len(expected) > 0
    for line, other in zip(lines, expected, strict=True):
        assert line.keys() == other.keys()
        for key, value in other.items():
            assert (
                value == line[key]
                if isinstance(value, str)
                else np.isclose(line[key], value, rtol=1e-4)
            ), key


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("changes", "rates"),
    [
        ({"optimizer__name": "adamw"}, (0.5, 0.25)),
        (
            {"optimizer__name": "schedule_free_adamw", "optimizer__schedule": "constant"},
            (0.01, 0.02),
        ),
    ],
)
def test_trials_that_train_together_equal_separate_runs(tmp_path, capsys, changes, rates):
    trials = [
        trial | {"optimizer.learning_rate": rate} for trial, rate in zip(TRIALS, rates, strict=True)
    ]
    assert run(sweep, *together_flags(tmp_path, trials, **changes)) == 0
    assert states(tmp_path) == ["complete", "complete"]
    logged = capsys.readouterr().err
    assert "Trial 1 is complete" in logged and "validation" not in logged
    for number, values in enumerate(trials):
        given = changes | {key.replace(".", "__"): value for key, value in values.items()}
        separate = tmp_path / f"separate{number}"
        assert run(train, *flags(separate, training__steps=8, **given)) == 0
        assert_close(record(tmp_path, number), read_untimed(separate / "metrics.jsonl"))
        trial = tmp_path / "sweep" / "trials" / f"{number:04}"
        assert steps_in(trial / "checkpoints") == steps_in(separate / "checkpoints")
        decoded = [read_parameters(each / "checkpoints" / "8") for each in (trial, separate)]
        assert distance(*decoded) < 1e-4
        own = [
            line for line in (trial / "log.txt").read_text().splitlines() if "validation" in line
        ]
        assert len(own) == 2  # of steps 4 and 8; the other trial's lines are in its own file


@pytest.mark.slow
def test_a_trial_that_is_pruned_leaves_the_others_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "HEARTBEAT", 0.2)
    trials = [{"optimizer.learning_rate": rate} for rate in (1e-6, 0.1, 0.05)]
    changes = {"training__steps": 200, "training__eval_every": 20}
    pruner = "optuna.pruners.ThresholdPruner(upper=4.0, n_warmup_steps=20)"
    assert run(sweep, *together_flags(tmp_path, trials, pruner, **changes)) == 0
    assert states(tmp_path) == ["pruned", "complete", "complete"]
    assert record(tmp_path, 0)[-1]["step"] < 200
    assert run(train, *flags(tmp_path / "separate", **changes, optimizer__learning_rate=0.1)) == 0
    losses = [
        [line["loss"] for line in lines if line["split"] == "valid"]
        for lines in (record(tmp_path, 1), read_untimed(tmp_path / "separate" / "metrics.jsonl"))
    ]
    np.testing.assert_allclose(*losses, rtol=0.01)  # roundings grow in 200 steps


@pytest.mark.slow
def test_trials_take_the_places_of_others_with_recomputed_layers_and_after_a_failure(
    tmp_path, monkeypatch
):
    trials = [{"seed": seed, "model.dropout": seed / 10} for seed in range(4)]
    original, failing = TrialStack.write, iter([True])

    def put(self, slot, state):
        if slot == 1 and next(failing, False):
            raise RuntimeError("a device is lost")
        original(self, slot, state)

    monkeypatch.setattr(TrialStack, "write", put)
    argv = together_flags(tmp_path, trials, model__remat="layers", training__steps=4)
    assert run(sweep, *argv, "--jobs=2") == 0
    monkeypatch.undo()
    assert sorted(states(tmp_path)) == ["complete"] * 3 + ["fail"]
    assert run(sweep, *argv, "--jobs=2", "--retry_failed") == 0
    assert states(tmp_path) == ["complete"] * 4
    separate = flags(
        tmp_path / "separate", model__remat="layers", training__steps=4, seed=3, model__dropout=0.3
    )
    assert run(train, *separate) == 0
    assert_close(record(tmp_path, 3), read_untimed(tmp_path / "separate" / "metrics.jsonl"))


@pytest.mark.slow
def test_trials_of_a_killed_sweep_are_resumed_to_the_same_metrics(tmp_path):
    argv = together_flags(
        tmp_path, TRIALS, training__steps=100, checkpoint__every=10, optimizer__name="adamw"
    )
    command, folder = [sys.executable, "-m", "scripts.sweep", *argv], tmp_path / "sweep"
    killed = subprocess.Popen(command, stderr=subprocess.PIPE)
    while not all(
        steps_in(folder / "trials" / f"000{number}" / "checkpoints") for number in (0, 1)
    ):
        assert killed.poll() is None
        time.sleep(0.01)
    killed.kill()
    killed.communicate()
    assert steps_in(folder / "trials" / "0000" / "checkpoints")[-1] < 100
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Resuming from the checkpoint" in (folder / "trials" / "0000" / "log.txt").read_text()
    resumed = [record(tmp_path, number) for number in (0, 1)]
    (tmp_path / "whole").mkdir()
    argv[argv.index(f"--workdir={folder}")] = f"--workdir={tmp_path / 'whole' / 'sweep'}"
    assert run(sweep, *argv) == 0
    assert resumed == [record(tmp_path / "whole", number) for number in (0, 1)]


@pytest.mark.slow
def test_a_plan_tells_how_many_trials_fit(tmp_path, capsys):
    assert run(sweep, *together_flags(tmp_path, TRIALS, optimizer__name="adamw"), "--plan") == 0
    out = capsys.readouterr().out
    assert out.startswith("One trial needs ") and "at most " in out
    assert not (tmp_path / "sweep").exists()


PACKED = {"batch__max_buckets": 1}


@pytest.mark.parametrize(
    ("changes", "trials", "message"),
    [
        (
            PACKED,
            listed([{"model.d_model": 8}], objective="loss", pruner=None),
            "model.d_model varies, but only seed,",
        ),
        ({}, listed([{"seed": 1}], objective="loss", pruner=None), "set config.batch.plan=packed"),
        (
            PACKED | {"training__accumulation": 2},
            listed([{"seed": 1}], objective="loss", pruner=None),
            "set config.training.accumulation=1",
        ),
        (
            PACKED,
            listed([{"seed": 1}, {"optimizer.weight_decay": 0.1}], objective="loss", pruner=None),
            "optimizer.weight_decay=0 needs another program",
        ),
        (
            PACKED,
            search(
                {"optimizer.weight_decay": optuna.distributions.FloatDistribution(0.0, 0.1)},
                trials=2,
                objective="loss",
                sampler=lambda seed: optuna.samplers.RandomSampler(seed),
                pruner=None,
            ),
            "optimizer.weight_decay=0 needs another program",
        ),
    ],
)
def test_trials_that_cannot_train_together_are_refused(changes, trials, message):
    with pytest.raises(UserError, match=message):
        together.check(tiny_config(**changes), trials, 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--from=run", "--together"], "--from only decodes"),
        (["--config=x.py", "--plan"], "transformer.train --plan"),
    ],
)
def test_flags_that_do_not_fit_are_refused(tmp_path, capsys, given, message):
    what = sweep_file(tmp_path, 'sweep.listed([{"seed": 1}], objective="loss", pruner=None)')
    assert run(sweep, *given, what, f"--workdir={tmp_path / 'sweep'}") == 2
    assert message in error(capsys)
