"""The table, `trials.csv` and the importances of trials whose values are known."""

import csv
import io
import json
import math
from pathlib import Path

import pytest
from optuna.distributions import FloatDistribution
from optuna.samplers import RandomSampler
from optuna.trial import TrialState

from scripts import markdown
from scripts.sweeping import results
from scripts.sweeping.description import Sweep, listed, product, search, seeds
from scripts.sweeping.folder import SweepFolder
from scripts.sweeping.study import SweepStudy
from scripts.sweeping.tasks import TrainingTask
from tests.scripts.sweeping.fakes import make_study
from transformer.config import loading

SWEEP = listed(product({"model.dropout": [0.1, 0.3]}, seeds(2)), objective="bleu", pruner=None)


def complete(path: Path, sweep: Sweep, objective: list[float | None]) -> SweepStudy:
    """Returns a study whose trials have these values; None fails a trial."""
    study = make_study(path, sweep)
    for value in objective:
        trial = study.claim()
        trial.study.tell(trial, value, TrialState.FAIL if value is None else TrialState.COMPLETE)
    return study


@pytest.fixture
def study(tmp_path):
    return complete(tmp_path, SWEEP, [30.0, 32.0, 35.0, None])


def test_the_table_has_mean_and_deviation_over_seeds_best_first_and_partial_rows_last(study):
    table = results.make_table(study.trials(), SWEEP)
    # The mean of 30 and 32 is 31, the sample standard deviation sqrt(2).
    assert table == [
        ("bleu", "model.dropout", "trials"),
        (f"31 ± {math.sqrt(2):.1f}", "0.1", "0, 1"),
        ("35", "0.3", "2 (1 of 2)"),
    ]
    assert markdown.table([["<|de|>", "b"]]).startswith("| <\\|de\\|> | b |\n")
    assert markdown.table(table).splitlines()[:3] == [
        "| bleu | model.dropout | trials |",
        "| --- | --- | --- |",
        "| 31 ± 1.4 | 0.1 | 0, 1 |",
    ]


def test_a_repeated_setting_is_no_second_seed(tmp_path):
    sweep = listed([{"model.dropout": 0.1}], objective="bleu", pruner=None)
    trials = complete(tmp_path, sweep, [30.0]).trials() * 2
    assert [row[0] for row in results.make_table(trials, sweep)[1:]] == ["30"]


def test_the_lowest_of_a_minimized_objective_is_first(tmp_path):
    sweep = listed(product({"model.dropout": [0.1, 0.3]}), objective="nll", pruner=None)
    trials = complete(tmp_path, sweep, [2.0, 1.0]).trials()
    assert [row[0] for row in results.make_table(trials, sweep)[1:]] == ["1", "2"]
    assert "best nll 1 (trial 1)" in results.summary(trials, sweep)


def test_the_file_has_a_row_for_each_trial(study):
    workdirs = [Path(f"trials/{trial}") for trial in range(4)]
    rows = list(csv.DictReader(io.StringIO(results.make_csv(study.trials(), SWEEP, workdirs))))
    assert [row["number"] for row in rows] == ["0", "1", "2", "3"]
    assert [row["state"] for row in rows] == ["complete", "complete", "complete", "fail"]
    assert [row["bleu"] for row in rows] == ["30.0", "32.0", "35.0", ""]
    assert [row["model.dropout"] for row in rows] == ["0.1", "0.1", "0.3", "0.3"]
    assert [row["seed"] for row in rows] == ["0", "1", "0", "1"]
    assert rows[3]["workdir"] == "trials/3"
    assert all(float(row["seconds"]) >= 0 for row in rows)


@pytest.mark.parametrize(
    ("config", "key", "line"),
    [
        ("base", "model.dropout", "the first 40 sentences; beam 1, alpha 0.6"),
        ("base", "decoding.length_penalty", "the first 40 sentences; beam 1, alpha (varied)"),
        (
            "base",
            "decoding.length_penalty_form",
            "the first 40 sentences; beam 1, alpha 0.6, form (varied)",
        ),
        ("base", "decoding.strategy", "the first 40 sentences; strategy (varied)"),
        ("base", "training.eval_sentences", "the first (varied) sentences; beam 1, alpha 0.6"),
        ("ctc", "model.dropout", "the first 40 sentences; ctc greedy"),
        ("ctc", "training.eval_beam_size", "the first 40 sentences; ctc beam (varied), alpha 0.6"),
    ],
)
def test_validation_bleu_is_shown_with_its_sentences_and_beam(tmp_path, config, key, line):
    folder = SweepFolder(tmp_path)
    training = TrainingTask(
        loading.load_file(f"configs/{config}.py", [("training.eval_sentences", "40")]), folder
    )
    sweep = listed(product({key: [1]}), objective="bleu", pruner=None)
    folder.record.write_text(json.dumps(folder.describe(sweep, training.identity)))
    expected = f"bleu: valid, {line}, best validation of each trial."
    assert results.describe_decoding(folder, sweep, 0) == expected
    assert results.describe_decoding(folder, sweep._replace(objective="nll"), 0) == ""


def test_a_key_that_decides_the_objective_has_all_the_importance(tmp_path):
    sweep = listed(product({"x": [1, 2, 3], "y": [1, 2, 3]}), objective="nll", pruner=None)
    assert results.importances(make_study(tmp_path, sweep)) == {}
    study = complete(tmp_path, sweep, [float(values["x"] ** 2) for values in sweep.trials])
    importances = results.importances(study)
    assert importances["x"] > 0.95
    assert sum(importances.values()) == pytest.approx(1.0)


def test_the_importances_of_a_complete_grid_are_its_analysis_of_variance(tmp_path):
    sweep = listed(product({"x": [1, 2], "y": [1, 2]}), objective="nll", pruner=None)
    # Effects: x (7 + 9) / 4 = 4, y (3 + 1) / 4 = 1, both (3 - 1) / 4 = 0.5; their squares sum to
    # 17.25.
    importances = results.importances(complete(tmp_path, sweep, [1.5, 2.5, 8.5, 11.5]))
    assert importances == pytest.approx(
        {"x": 16 / 17.25, "y": 1 / 17.25, "interactions": 0.25 / 17.25}
    )


@pytest.mark.slow
def test_a_forest_estimates_the_importances_of_a_search(tmp_path):
    space = {"x": FloatDistribution(0, 1), "y": FloatDistribution(0, 1)}
    settings = {
        "trials": results.FOREST_TRIALS,
        "objective": "nll",
        "sampler": lambda seed: RandomSampler(seed=seed),
    }
    study = make_study(tmp_path, search(space, **settings, pruner=None))
    for trial in iter(study.claim, None):
        assert results.importances(study) == {}
        trial.study.tell(trial, trial.params["x"])
    importances = results.importances(study)
    assert importances["x"] > 0.9
    assert sum(importances.values()) == pytest.approx(1.0)


def test_few_trials_without_a_complete_grid_have_no_importances(tmp_path):
    sweep = listed(product({"x": [1, 2], "y": [1, 2]}), objective="nll", pruner=None)
    assert results.importances(complete(tmp_path, sweep, [1.0, 2.0, 8.0, None])) == {}


def test_an_extended_sweep_has_importances(tmp_path):
    shorter, longer = (listed(seeds(count), objective="nll", pruner=None) for count in (2, 4))
    complete(tmp_path, shorter, [1.0, 2.0])
    assert results.importances(complete(tmp_path, longer, [3.0, 4.0])) == {"seed": 1.0}


def test_keys_that_not_all_trials_have_are_left_out_of_the_importances(tmp_path):
    sweep = listed([{"x": 1, "y": 1}, {"x": 2}, {"x": 3}], objective="nll", pruner=None)
    assert results.importances(complete(tmp_path, sweep, [1.0, 2.0, 3.0])) == {"x": 1.0}


def test_the_summary_counts_the_trials(study):
    assert results.summary(study.trials(), SWEEP) == (
        "3 of 4 trials complete, 0 running, 0 pruned, 1 failed, best bleu 35 (trial 2)"
    )
    study.retry_failed()
    study.claim()
    summary = results.summary(study.trials(), SWEEP)
    assert "1 running" in summary and "0 failed" in summary
