"""Learning-rate curves by width: the values of sweeps, the optimum, and mistakes."""

import json
import math
from pathlib import Path

import pytest

from scripts.charts import mup
from scripts.sweeping import description
from scripts.sweeping.folder import SweepFolder
from scripts.sweeping.tasks import TrainingTask
from tests.scripts.charts.drawn import data, svg, texts
from transformer.config import loading
from transformer.support.errors import UserError

RATES = [0.001, 0.002, 0.004]


def make_sweep(path: Path, model: str, values: list[float | None], objective: str = "nll") -> Path:
    """Makes the folder of a sweep with two seeds of each rate, of which None has not ended."""
    folder = SweepFolder(path)
    trials = description.product({mup.RATE: RATES}, description.seeds(2))
    sweep = description.listed(trials, objective=objective, pruner=None)
    config = loading.load_file(f"configs/mup.py:{model}", [])
    record = folder.describe(sweep, TrainingTask(config, folder).identity)
    path.mkdir()
    folder.record.write_text(json.dumps(record))
    for number, value in enumerate(values):
        workdir = folder.workdir(number)
        workdir.mkdir(parents=True)
        lines = [{"step": 2, "split": "valid", "loss": 1.0, objective: value}]
        if objective == "nll" and value == 2.0:  # the best validation counts
            lines.append({"step": 1, "split": "valid", "loss": 1.0, objective: 9.0})
        lines.append({"step": 2, "split": "train", objective: 0.0})
        (workdir / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        if value is not None:
            (workdir / "complete.json").touch()
    return path


@pytest.fixture
def folders(tmp_path) -> list[Path]:
    return [
        make_sweep(tmp_path / "a", "standard-32", [3.0, 5.0, 2.0, 2.0, 1.0, math.nan]),
        make_sweep(tmp_path / "b", "mup-64", [3.0, 3.0, 2.0, None, 2.5, 2.5]),
    ]


def test_a_point_is_the_mean_of_the_best_validations(folders):
    objective, best, curves = mup.read(folders)
    assert (objective, best) == ("nll", min)
    assert curves == {
        ("standard", 32): {0.001: 4.0, 0.002: 2.0},  # the last rate has diverged
        ("mup", 64): {0.001: 3.0, 0.002: 2.0, 0.004: 2.5},
    }


def test_the_optimum_of_each_curve_is_marked(folders):
    chart = mup.draw(folders)
    optima = {(each["name"], each["rate"]) for each in data(chart) if each["is_best"]}
    assert optima == {("standard", 0.002), ("mup", 0.002)}
    assert {"standard", "mup", "32", "64", "nll", "learning rate"} <= set(texts(svg(chart)))


def test_the_best_score_is_the_highest(tmp_path):
    folder = make_sweep(tmp_path / "a", "mup-64", [1.0, 1.0, 3.0, 3.0, 2.0, 2.0], "accuracy")
    (optimum,) = [each for each in data(mup.draw([folder])) if each["is_best"]]
    assert optimum["rate"] == 0.002


def test_mistakes_are_named(folders, tmp_path):
    other = make_sweep(tmp_path / "c", "mup-64", [1.0], "accuracy")
    with pytest.raises(UserError, match="have the objectives nll, accuracy; draw one"):
        mup.read([*folders, other])
    with pytest.raises(UserError, match="no trial is complete"):
        mup.read([make_sweep(tmp_path / "d", "mup-64", [None])])
    with pytest.raises(UserError, match="is not the folder of a sweep"):
        mup.read([tmp_path])
