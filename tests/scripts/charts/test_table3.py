"""The figure of Table 3: scores here and in the paper, and their differences from the base row."""

import json

import pytest

from configs.table3 import ROWS
from scripts.charts import table3
from scripts.reproduction import rows
from scripts.sweeping import description
from scripts.sweeping.folder import SweepFolder
from scripts.sweeping.tasks import TrainingTask
from tests.scripts.charts.drawn import data, marks
from transformer.support.errors import UserError

BLEU = {"base": [30.0, 31.0], "A_h1": [28.0]}
PERPLEXITY = {"base": [10.0, 12.0], "A_h1": [13.2]}


@pytest.fixture
def folder(tmp_path):
    """Returns the folder of `scripts.reproduce` with two seeds of base and one of A_h1, and one run
    that is missing.
    """
    configs = rows.read_rows("mini", "A_h1,A_h4", [])
    sweep_folder = SweepFolder(tmp_path / "out")
    trials = [
        rows.changes(configs, row) | {"seed": seed}
        for row, seed in (("base", 0), ("base", 1), ("A_h1", 0), ("A_h4", 0))
    ]
    described = description.listed(trials, objective="bleu", pruner=None)
    record = sweep_folder.describe(described, TrainingTask(configs["base"], sweep_folder).identity)
    sweep_folder.path.mkdir()
    sweep_folder.record.write_text(json.dumps(record))
    scores = [(row, i) for row in BLEU for i in range(len(BLEU[row]))]
    for number, (row, i) in enumerate(scores):
        workdir = sweep_folder.workdir(number)
        workdir.mkdir(parents=True)
        lines = [{"step": 1, "split": "train", "seconds": 1.0}]
        lines += [
            {
                "step": 1,
                "split": "valid",
                "bleu": BLEU[row][i],
                "perplexity": PERPLEXITY[row][i],
                "loss": 2.0,
            }
        ]
        (workdir / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        (workdir / "complete.json").touch()
    return sweep_folder.path


def test_differences_are_from_the_base_row(folder):
    assert table3.read(folder) == {"bleu": BLEU, "perplexity": PERPLEXITY}
    records = [record for record in data(table3.draw(folder)) if "row" in record]
    assert [(record["row"], record["source"]) for record in records[:5]] == [
        *(("base", "paper"), ("(A) h = 1", "paper")),
        *(("base", "here"), ("base", "here"), ("(A) h = 1", "here")),
    ]
    bleu, perplexity = ([record["value"] for record in half] for half in (records[:5], records[5:]))
    assert bleu == pytest.approx([0, 24.9 - 25.8, -0.5, 0.5, 28.0 - 30.5])
    assert perplexity == pytest.approx(
        [0, 5.29 / 4.92 - 1, 10 / 11 - 1, 12 / 11 - 1, 13.2 / 11 - 1]
    )


def test_seeds_are_a_point_with_a_bar_of_one_standard_deviation(folder):
    rules = [
        item
        for mark in marks(table3.draw(folder))
        if mark["marktype"] == "rule"
        for item in mark["items"]
    ]
    bars = [
        abs(item["x2"] - item["x"])
        for item in rules
        if item["stroke"] == table3.COLORS["here"] and "x2" in item
    ]
    # base in both panels; other rows have one seed
    assert len([bar for bar in bars if bar > 1]) == 2


def test_a_run_that_diverged_is_left_out():
    records = table3.records({"base": [30.0], "A_h1": [float("nan")]}, "bleu")
    assert [(record["row"], record["source"]) for record in records] == [
        *(("base", "paper"), ("(A) h = 1", "paper")),
        ("base", "here"),
    ]


def test_a_folder_without_the_runs_is_refused(folder, tmp_path):
    with pytest.raises(UserError, match="is not the folder of a sweep"):
        table3.draw(tmp_path)
    for number in (0, 1):
        (folder / "trials" / f"{number:04}" / "complete.json").unlink()
    with pytest.raises(UserError, match="has no complete run of the row base"):
        table3.draw(folder)


def test_rows_have_the_paper_s_symbols():
    names = [table3.row_name(name) for name in ROWS]
    assert names[:3] == ["base", "(A) h = 1", "(A) h = 4"] and names[-2:] == [
        "(E) learned positions",
        "big",
    ]
    assert {
        "(B) d_k = 16",
        "(C) N = 2",
        "(C) d_model = 256",
        "(C) d_ff = 4096",
        "(D) dropout = 0.2",
    } <= set(names)
    assert len(set(names)) == len(ROWS) and not any("_h" in name or "_N" in name for name in names)
