"""The figure of Table 3: scores here and in the paper, and their differences from the base row."""

import json
import statistics

import pytest

from configs.table3 import ROWS
from scripts.charts import table3
from scripts.reproduction import rows
from scripts.sweeping import description
from scripts.sweeping.folder import Folder
from scripts.sweeping.tasks import Training
from tests.scripts.charts.drawn import data
from transformer.errors import UserError

BLEU = {"base": [30.0, 31.0], "A_h1": [28.0]}
PERPLEXITY = {"base": [10.0, 12.0], "A_h1": [13.2]}


@pytest.fixture
def folder(tmp_path):
    """Returns the folder of `scripts.reproduce` with two seeds of base and one of A_h1, and one run that is missing."""
    scale = rows.SCALES["mini"]
    configs = rows.read_rows(scale, scale.data, "A_h1,A_h4", [])
    sweep_folder = Folder(tmp_path / "out")
    trials = [
        rows.changes(configs, row) | {"seed": seed}
        for row, seed in (("base", 0), ("base", 1), ("A_h1", 0), ("A_h4", 0))
    ]
    described = description.listed(trials, objective="bleu", pruner=None)
    record = sweep_folder.describe(described, Training(configs["base"], sweep_folder).identity)
    sweep_folder.path.mkdir()
    sweep_folder.record.write_text(json.dumps(record))
    scores = [(row, i) for row in BLEU for i in range(len(BLEU[row]))]
    for number, (row, i) in enumerate(scores):
        workdir = sweep_folder.workdir(number)
        workdir.mkdir(parents=True)
        lines = [{"step": 1, "split": "train", "seconds": 1.0}]
        lines += [{"step": 1, "split": "valid", "bleu": BLEU[row][i], "perplexity": PERPLEXITY[row][i]}]
        (workdir / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        (workdir / "complete.json").touch()
    return sweep_folder.path


def test_the_chart_has_the_scores_of_complete_runs_beside_the_paper_s(folder):
    assert table3.read(folder) == {"bleu": BLEU, "perplexity": PERPLEXITY}
    records = [
        (record["row"], record["source"], record["value"], record.get("high"))
        for record in data(table3.draw(folder, absolute=True))
    ]
    spread = statistics.stdev(BLEU["base"])
    assert records[:2] == [("base", "paper", 25.8, None), ("(A) h = 1", "paper", 24.9, None)]
    assert records[2] == ("base", "here", 30.5, pytest.approx(30.5 + spread))
    assert records[3] == ("(A) h = 1", "here", 28.0, None)
    assert [record[2] for record in records[4:]] == [4.92, 5.29, 11.0, 13.2]


def test_differences_are_from_the_base_row(folder):
    records = [record for record in data(table3.draw(folder)) if "row" in record]
    bleu, perplexity = records[:4], records[4:]
    assert [record["value"] for record in bleu] == pytest.approx([0, 24.9 - 25.8, 0, 28.0 - 30.5])
    assert [record["value"] for record in perplexity] == pytest.approx([0, 5.29 / 4.92 - 1, 0, 13.2 / 11 - 1])
    assert perplexity[2]["high"] == pytest.approx(statistics.stdev([10 / 11, 12 / 11]))


def test_a_run_that_diverged_is_left_out():
    records = table3.records({"base": [30.0], "A_h1": [float("nan")]}, "bleu", relative=True)
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
    assert {record["row"] for record in data(table3.draw(folder, absolute=True))} == {"(A) h = 1"}
    (folder / "trials" / "0002" / "complete.json").unlink()
    with pytest.raises(UserError, match="has no complete run of a row of Table 3 yet"):
        table3.draw(folder)


def test_rows_have_the_paper_s_symbols():
    names = [table3.row_name(name) for name in ROWS]
    assert names[:3] == ["base", "(A) h = 1", "(A) h = 4"] and names[-2:] == ["(E) learned positions", "big"]
    assert {"(B) d_k = 16", "(C) N = 2", "(C) d_model = 256", "(C) d_ff = 4096", "(D) dropout = 0.2"} <= set(names)
    assert len(set(names)) == len(ROWS) and not any("_h" in name or "_N" in name for name in names)
