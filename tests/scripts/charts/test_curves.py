"""Curves of runs: systems and their seeds, means and bands, and what a record lacks."""

import json
import statistics
from pathlib import Path

import pytest

from scripts.charts import curves
from scripts.results.runs import read_runs
from tests.scripts.charts.drawn import data, marks, svg, texts
from tests.scripts.evaluated import make_run
from transformer.support.errors import UserError


def add_run(path: Path, losses: dict[int, float], split: str = "valid", **changes: str) -> Path:
    make_run(path, **changes)
    lines = [{"step": step, "split": split, "loss": loss} for step, loss in losses.items()]
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


@pytest.fixture
def runs(tmp_path) -> list[Path]:
    """Two seeds of one system, of which the second has ended early, and another system."""
    return [
        add_run(tmp_path / "base-0", {10: 5.0, 20: 4.0, 30: 3.5}, seed="0"),
        add_run(tmp_path / "base-1", {10: 6.0, 20: 4.5}, seed="1"),
        add_run(
            tmp_path / "other", {10: 5.5, 20: float("nan"), 30: 3.0}, seed="0", model__dropout="0.3"
        ),
    ]


def test_seeds_share_a_label_that_names_the_difference(runs):
    systems = curves.group(read_runs(runs))
    names = {label: [run.label for run in members] for label, members in systems.items()}
    assert names == {"dropout=0.1 (2 seeds)": ["base-0", "base-1"], "dropout=0.3": ["other"]}
    assert list(curves.group(read_runs(runs[:2]))) == ["base (2 seeds)"]
    begun = add_run(runs[0].parent / "begun", {10: 5.0}, training__init_from="runs/a")
    assert list(curves.group(read_runs([runs[0], begun]))) == ["init_from=''", "init_from=runs/a"]


def test_systems_that_differ_in_much_have_the_names_of_their_folders(tmp_path):
    much = {"model__dropout": "0.3", "model__d_ff": "64", "optimizer__warmup_steps": "7"}
    paths = [add_run(tmp_path / "a", {1: 1.0}), add_run(tmp_path / "<b>", {1: 1.0}, **much)]
    assert list(curves.group(read_runs(paths))) == ["a", "<b>"]


def test_the_chart_has_every_seed_and_the_band_at_common_steps(runs):
    chart = curves.draw(runs, metrics=("loss",))
    records = {(record["run"], record["step"]): record for record in data(chart)}
    expected = {("base-0", 10): 5.0, ("base-0", 20): 4.0, ("base-0", 30): 3.5}
    expected |= {("base-1", 10): 6.0, ("base-1", 20): 4.5, ("other", 10): 5.5, ("other", 30): 3.0}
    # Without the value that is not finite.
    assert {place: record["value"] for place, record in records.items()} == expected
    common = {place for place, record in records.items() if record["is_common"]}
    assert common == {(run, step) for run in ("base-0", "base-1") for step in (10, 20)}
    (band,) = [mark for mark in marks(chart) if mark["marktype"] == "area"]
    height = {round(item["x"]): item["y2"] - item["y"] for item in band["items"]}
    # Twice the sample standard deviations, which are those of (5, 6) and (4, 4.5).
    first, second = (height[x] for x in sorted(height))
    assert first / second == pytest.approx(
        statistics.stdev((5.0, 6.0)) / statistics.stdev((4.0, 4.5))
    )


def test_seeds_in_folders_of_the_same_name_are_two_lines(tmp_path):
    runs = [
        add_run(tmp_path / f"seed{seed}" / "run", {10: 5.0 + seed, 20: 4.0}, seed=str(seed))
        for seed in (0, 1)
    ]
    assert list(curves.group(read_runs(runs))) == ["seed (2 seeds)"]
    names = {record["run"] for record in data(curves.draw(runs, metrics=("loss",)))}
    assert names == {"seed0/run", "seed1/run"}


def test_a_metric_without_validations_is_that_of_training(tmp_path):
    run = add_run(tmp_path / "run", {5: 2.0}, split="train")
    assert [record["step"] for record in data(curves.draw([run], metrics=("loss",)))] == [5]
    with pytest.raises(UserError, match="run: its record has no loss of the split valid"):
        curves.draw([run], metrics=("loss",), split="valid")
    with pytest.raises(UserError, match="run: its record has no bleu of the split train"):
        curves.draw([run], metrics=("bleu",), split="train")


def test_a_folder_without_a_record_and_one_given_twice_are_refused(tmp_path):
    empty = make_run(tmp_path / "empty")
    with pytest.raises(UserError, match=r"empty: its record has no loss of the split valid"):
        curves.draw([empty])
    run = add_run(tmp_path / "run", {1: 1.0})
    with pytest.raises(UserError, match="is given twice"):
        curves.draw([run, tmp_path / "." / "run"])


@pytest.mark.parametrize("numbers", [[0], [0, 1], [0, 1, 2]])
def test_every_layer_has_data(runs, numbers):  # for one without, browsers log a warning
    assert all(
        curves.draw([runs[i] for i in numbers], metrics=("loss",)).to_dict()["datasets"].values()
    )


def test_a_single_value_is_on_the_axis_as_it_is(tmp_path):
    run = make_run(tmp_path / "run")
    line = {"step": 7, "split": "train", "loss": 6.2934, "learning_rate": 1.25e-05}
    (run / "metrics.jsonl").write_text(f"{json.dumps(line)}\n")
    labels = texts(svg(curves.draw([run], metrics=("loss", "learning_rate"), split="train")))
    assert {"6.293", "0.0000125", "7"} <= set(labels) and not {"6", "0"} & set(labels)


@pytest.mark.parametrize(("last", "scale"), [(45.0, "linear"), (18.0, "log")])
def test_a_small_range_has_a_linear_axis(tmp_path, last, scale):
    run = make_run(tmp_path / "run")
    lines = [
        {"step": i, "split": "valid", "perplexity": value} for i, value in enumerate((90.0, last))
    ]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (panel,) = curves.draw([run], metrics=("perplexity",)).to_dict()["concat"]
    assert panel["layer"][0]["encoding"]["y"]["scale"].get("type", "linear") == scale


def test_a_line_of_one_point_has_a_mark_beside_longer_lines(tmp_path):
    longer = add_run(tmp_path / "longer", {step: 1.0 / step for step in range(1, 60)})
    single = add_run(tmp_path / "single", {1: 1.0}, seed="1")

    def symbols(*runs: Path) -> list[dict]:
        return [
            mark
            for mark in marks(curves.draw(runs, metrics=("loss",)))
            if mark["marktype"] == "symbol"
        ]

    assert symbols(longer, single) and not symbols(longer)
