"""The table, the file and the importances of trials whose values are known."""

import csv
import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from scripts import markdown
from scripts.sweeping import results
from scripts.sweeping.description import listed, product, seeds
from scripts.sweeping.display import render
from scripts.sweeping.jobs import Job
from scripts.sweeping.ledger import Ledger
from tests.scripts.sweeping.fakes import fake

SWEEP = listed(product({"model.dropout": [0.1, 0.3]}, seeds(2)), objective="bleu", pruner=None)


@pytest.fixture
def ledger(tmp_path):
    """Dropout 0.1: BLEU 30 and 32; dropout 0.3: 35, and a failed trial."""
    with Ledger(f"sqlite:///{tmp_path / 'study.db'}", "study", SWEEP) as ledger:
        ledger.mend()
        for value in (30.0, 32.0, 35.0):
            ledger.complete(ledger.claim(), value)
        ledger.fail(ledger.claim(), "exit code 2;\nout of luck")
        yield ledger


def test_the_table_has_mean_and_deviation_over_seeds_best_first_and_whole_rows_before_others(ledger):
    table = results.make_table(ledger.standings(), SWEEP)
    # Of 30 and 32: mean 31, sample standard deviation sqrt(2). The lost seed of the other might have been worse.
    assert table == [
        ("bleu", "model.dropout", "trials"),
        (f"31 ± {math.sqrt(2):.1f}", "0.1", "0, 1"),
        ("35", "0.3", "2 (1 of 2)"),
    ]
    assert markdown.table(table).splitlines()[:3] == [
        "| bleu | model.dropout | trials |",
        "| --- | --- | --- |",
        "| 31 ± 1.4 | 0.1 | 0, 1 |",
    ]


def test_what_is_minimized_is_sorted_the_other_way(tmp_path):
    sweep = listed(product({"model.dropout": [0.1, 0.3]}), objective="nll", pruner=None)
    with Ledger(f"sqlite:///{tmp_path / 'study.db'}", "study", sweep) as ledger:
        ledger.mend()
        for value in (2.0, 1.0):
            ledger.complete(ledger.claim(), value)
        assert [row[0] for row in results.make_table(ledger.standings(), sweep)[1:]] == ["1", "2"]
        assert results.best(ledger.standings(), sweep) == 1


def test_the_file_has_a_row_a_trial(ledger):
    workdirs = [Path(f"trials/{trial}") for trial in range(4)]
    rows = list(csv.DictReader(io.StringIO(results.make_csv(ledger.standings(), SWEEP, workdirs))))
    assert [row["number"] for row in rows] == ["0", "1", "2", "3"]
    assert [row["state"] for row in rows] == ["complete", "complete", "complete", "failed"]
    assert [row["bleu"] for row in rows] == ["30.0", "32.0", "35.0", ""]
    assert [row["model.dropout"] for row in rows] == ["0.1", "0.1", "0.3", "0.3"]
    assert [row["seed"] for row in rows] == ["0", "1", "0", "1"]
    assert rows[3]["workdir"] == "trials/3"
    assert all(float(row["seconds"]) >= 0 for row in rows)


def test_a_key_that_decides_all_has_all_the_importance(tmp_path):
    sweep = listed(product({"x": [1, 2, 3], "y": [1, 2, 3]}), objective="nll", pruner=None)
    with Ledger(f"sqlite:///{tmp_path / 'study.db'}", "study", sweep) as ledger:
        ledger.mend()
        assert results.importances(ledger) == {}
        for attempt in iter(ledger.claim, None):
            ledger.complete(attempt, float(attempt.values["x"] ** 2))
        shares = results.importances(ledger)
    assert shares["x"] > 0.95
    assert sum(shares.values()) == pytest.approx(1.0)


def test_keys_that_not_all_trials_have_are_left_out_of_the_importances(tmp_path):
    sweep = listed([{"x": 1, "y": 1}, {"x": 2}, {"x": 3}], objective="nll", pruner=None)
    with Ledger(f"sqlite:///{tmp_path / 'study.db'}", "study", sweep) as ledger:
        ledger.mend()
        for attempt in iter(ledger.claim, None):
            ledger.complete(attempt, float(attempt.values["x"]))
        assert results.importances(ledger) == {"x": 1.0}


def test_the_display_says_how_the_sweep_stands(ledger, tmp_path):
    assert results.summary(ledger.standings(), SWEEP, 1) == (
        "3 of 4 trials done  0 running  0 pruned  1 failed  best bleu 35 (trial 2)"
    )
    ledger.retry_failed()
    task = fake(tmp_path)
    job = Job(task, ledger.claim(), 0, 1, tmp_path)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(render(ledger.standings(), ledger, task, [job], 1))
    text = console.export_text()
    assert "1 running" in text and "0 failed" in text and "left" in text
    assert "0/4" in text and "model.dropout=0.3, seed=1" in text
