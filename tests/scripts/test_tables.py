"""The tables in README.md and docs/ are those that their records print."""

from pathlib import Path

import pytest

from configs import table3_mini
from scripts import markdown, tables
from scripts.reporting import published
from scripts.results.records import find_records, read_record_file
from tests.checkpoints.workdirs import run
from tests.scripts.evaluated import SENTENCES, add_evaluation
from tests.scripts.recorded import complete_run
from tests.scripts.results.test_records import write
from tests.scripts.tiny_sweep import error


def test_the_pages_equal_their_records(capsys):
    assert run(tables, "--check") == 0, capsys.readouterr().err


@pytest.mark.parametrize("table", published.TABLES, ids=lambda table: table.name)
def test_every_table_has_records_and_a_place_in_its_page(table):
    assert any(table.records.rglob("*.json"))
    assert markdown.read_text(table.name, table.page)


def test_every_record_of_the_repository_is_as_it_was_written():
    for folder in sorted({path.parent for path in Path("records").rglob("*.json")}):
        for path in find_records(folder):
            read_record_file(path)


def test_table_3_in_miniature_has_records_of_all_its_runs_at_one_commit():
    records = [read_record_file(path) for path in find_records(Path("records/table3-mini"))]
    assert len(records) == 2 * len(table3_mini.ROWS)
    assert len({record.environment["commit"] for record in records}) == 1
    assert not any(record.environment["uncommitted_changes"] for record in records)


@pytest.fixture
def page(tmp_path, monkeypatch):
    """Returns a page with tables of two records of three seeds on test and validation."""
    workdirs = [complete_run(tmp_path / f"run{seed}", seed=str(seed)) for seed in range(2)]
    for number, workdir in enumerate(workdirs):
        scores = {"bleu_lowercase_tokenized": 41.0 + number, "bleu": 40.0, "chrf": 65.0 + number}
        add_evaluation(workdir, "test-step9", SENTENCES, SENTENCES, split="test", **scores)
    assert write(tmp_path / "records", *workdirs) == 0
    path = tmp_path / "page.md"
    path.write_text(
        "one\n<!-- summary: begin -->\nx\n<!-- summary: end -->\n"
        "two\n<!-- results: begin -->\ny\n<!-- results: end -->\nthree\n"
    )
    listed = [table for table in published.TABLES if table.records == published.MULTI30K]
    changes = {"page": str(path), "records": tmp_path / "records"}
    listed = tuple(table._replace(**changes) for table in listed)
    monkeypatch.setattr(published, "TABLES", listed)
    return path


def test_tables_are_printed_between_their_marks(page):
    assert run(tables) == 0
    text = page.read_text()
    assert text.startswith("one\n<!-- summary: begin -->\n| test2016 |") and "\nx\n" not in text
    # Means and sample standard deviations of 41 and 42, 40 and 40, 65 and 66.
    assert (
        "| this project, mean ± standard deviation of 2 seeds | 41.5 ± 0.7 | 40.0 ± 0.0 "
        "| 65.5 ± 0.7 | 2 minutes per run on 2 CPU cores |"
    ) in text
    assert text.count("| tiny |") == 2 and "| 0, 1 | 41.50 ± 0.71 |" in text
    assert run(tables, "--check") == 0


def test_a_summary_of_several_systems_is_refused(page, tmp_path, capsys):
    add_evaluation(
        tmp_path / "run0",
        "test-step9-beam7",
        SENTENCES,
        SENTENCES,
        split="test",
        decoding={"beam_size": 7},
    )
    assert write(tmp_path / "records", tmp_path / "run0", tmp_path / "run1") == 0
    assert run(tables) == 2
    assert "has 2 systems on test; the summary has one" in error(capsys)


def test_a_changed_table_and_a_changed_record_are_named(page, capsys):
    assert run(tables) == 0
    text = page.read_text()
    page.write_text(text.replace("| 41.50 ± 0.71 |", "| 43.50 ± 0.71 |"))
    capsys.readouterr()
    assert run(tables, "--check") == 2
    assert f"{page}: the table results differs from {page.parent}/records" in error(capsys)
    page.write_text(text)
    path = page.parent / "records" / "seed1.json"
    path.write_text(path.read_text().replace("42.0", "43.0"))
    assert run(tables, "--check") == 2
    assert f"{path}: edited by hand: its digest differs" in error(capsys)


def test_a_table_of_kinds_has_the_loss_beside_the_clean_text(tmp_path):
    kind = {"split": None, "data": "test of data-typos"}
    for name, clean, typos in [("plain", [40.0, 42.0], [30.0, 31.0]), ("robust", [40.5], [36.0])]:
        workdirs = []
        for seed, scores in enumerate(zip(clean, typos, strict=True)):
            workdir = complete_run(tmp_path / f"{name}{seed}", evaluate=False, seed=str(seed))
            add_evaluation(workdir, "a", SENTENCES, SENTENCES, split="test", bleu=scores[0])
            add_evaluation(workdir, "b", SENTENCES, SENTENCES, **kind, bleu=scores[1])
            workdirs.append(workdir)
        assert write(tmp_path / "records" / name, *workdirs) == 0
    assert published.make_kinds(tmp_path / "records").splitlines() == [
        "| split | plain | loss | robust | loss |",
        "| --- | --- | --- | --- | --- |",
        "| test | 41.0 ± 1.4 |  | 40.5 |  |",
        "| test of data-typos | 30.5 ± 0.7 | 10.5 | 36.0 | 4.5 |",
    ]
