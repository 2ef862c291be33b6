"""The report's section on confidence: which evaluations it has, and its numbers."""

import json
from pathlib import Path

import numpy as np
import pytest

from scripts import report
from scripts.reporting.confidence import confidence_sections, coverage
from scripts.results.calibration import measure, reliability
from scripts.results.runs import read_runs
from tests.checkpoints.workdirs import run
from tests.scripts.evaluated import SENTENCES, add_evaluation, damage, make_run

COUNT = len(SENTENCES)


def add_confidences(file: Path, confidences: list, chrf: list) -> None:
    """Writes the confidence of each sentence as transformer.evaluate does."""
    lines = [
        json.dumps({"score": -1.0, "confidence": one, "chrf": score})
        for one, score in zip(confidences, chrf, strict=True)
    ]
    file.with_name(f"{file.stem}.sentences.jsonl").write_text("\n".join(lines) + "\n")


def evaluate_run(path: Path, name: str, **saved) -> tuple[np.ndarray, np.ndarray]:
    """Adds an evaluation with random confidences; returns them with chrF."""
    random = np.random.default_rng(len(name))
    confidences, chrf = random.random(COUNT), 100 * random.random(COUNT)
    file = add_evaluation(
        path, name, damage(SENTENCES, 0.1, 1), SENTENCES, confidence_threshold=40.0, **saved
    )
    add_confidences(file, confidences.tolist(), chrf.tolist())
    return confidences, chrf


@pytest.fixture
def calibrated(tmp_path) -> Path:
    path = make_run(tmp_path / "calibrated")
    (path / "calibration.json").write_text("{}")
    return path


def test_evaluations_of_splits_and_files_have_their_measures(calibrated):
    values = {
        "test": evaluate_run(calibrated, "a-split", split="test"),
        "talks.en": evaluate_run(calibrated, "file", split=None, source="talks.en"),
        "test of x": evaluate_run(calibrated, "other-data", split=None, data="test of x"),
    }
    add_evaluation(calibrated, "without", SENTENCES, SENTENCES)
    (section,) = confidence_sections(read_runs([calibrated], "WORKDIR"))
    rows = {row[1]: row for row in section.content["rows"]}
    assert list(rows) == list(values) and section.notes == []
    for text, (confidences, chrf) in values.items():
        measures = measure(confidences, chrf >= 40)
        assert rows[text][2:5] == ("chrF 40", "20", f"{np.mean(chrf >= 40):.1%}")
        for cell, name in zip(rows[text][5:], ("auc", "calibration_error"), strict=True):
            low, high = measures[f"{name}_interval"]
            assert cell == f"{measures[name]:.3f} [{low:.3f}, {high:.3f}]"
    # The points of the first curve are those of its bins.
    points = section.charts["reliability"]["datasets"]
    (records,) = points.values() if points else [section.charts["reliability"]["data"]["values"]]
    first = [(one["x"], one["y"]) for one in records if "a-split" in one["name"]]
    confidences, chrf = values["test"]
    assert np.array(first) == pytest.approx(reliability(confidences, chrf >= 40)[:, 1:])


def test_translations_without_tokens_are_left_out(calibrated):
    file = add_evaluation(calibrated, "valid", SENTENCES, SENTENCES, confidence_threshold=40.0)
    confidences = [None] * 5 + [0.5] * (COUNT - 5)
    add_confidences(file, confidences, [100.0] * COUNT)
    (section,) = confidence_sections(read_runs([calibrated], "WORKDIR"))
    ((*_, count, right, auc, _),) = section.content["rows"]
    assert (count, right, auc) == (str(COUNT - 5), "100.0%", "not defined")
    add_confidences(file, [None] * COUNT, [100.0] * COUNT)
    (section,) = confidence_sections(read_runs([calibrated], "WORKDIR"))
    assert section.content is None


def test_runs_without_a_calibration_have_no_section_and_others_a_note(calibrated, tmp_path):
    plain = make_run(tmp_path / "plain")
    evaluate_run(plain, "valid")
    assert confidence_sections(read_runs([plain], "WORKDIR")) == []
    (section,) = confidence_sections(read_runs([plain, calibrated], "WORKDIR"))
    (note,) = section.notes
    assert section.content is None and "calibrated has a calibration and no evaluation" in note
    evaluate_run(calibrated, "valid")
    file = calibrated / "evaluations" / "valid.sentences.jsonl"
    file.write_text(file.read_text().replace('"confidence"', '"other"'))
    (section,) = confidence_sections(read_runs([calibrated], "WORKDIR"))
    assert "valid.sentences.jsonl: damaged" in section.notes[0]


def test_coverage_is_the_mean_of_the_most_confident():
    shares, means = coverage(np.array([0.2, 0.9, 0.5, 0.1]), np.array([10.0, 80.0, 40.0, 30.0]))
    assert shares.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert means == pytest.approx([80.0, 60.0, 130 / 3, 40.0])
    shares, means = coverage(np.linspace(0, 1, 5000), np.ones(5000))
    assert len(shares) == 100 and shares[-1] == 1 and (means == 1).all()


def test_the_page_has_the_section(calibrated, tmp_path):
    evaluate_run(calibrated, "valid")
    output = tmp_path / "report.html"
    assert run(report, str(calibrated), f"--output={output}", "--sentences=0") == 0
    page = output.read_text()
    assert '<section id="confidence"' in page and "calibrated, valid" in page
